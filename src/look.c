/*
 * What has usually been quicker is done, and now and then the other, whose
 * time would not be known otherwise. The usual time goes a step up or down at
 * each answer, so that it comes to half of them being quicker, however slow
 * the slow ones are.
 */
#include "look.h"

enum {
    PROBE = 64,
    STEP = 1000,
    LONGEST = 4 * RL_LOOK_NS /* what takes longer counts as this */
};

/* It takes a processor, so it must be a quarter quicker. */
static int looking_pays(const rl_look *self)
{
    return self->usual[1] < self->usual[0] / 4 * 3;
}

int rl_look_begin(rl_look *self, uint64_t now)
{
    int probes = ++self->chances % PROBE == 0;

    self->asked = now;
    self->looks = looking_pays(self) != probes;
    return self->looks;
}

void rl_look_end(rl_look *self, uint64_t now)
{
    int64_t took = (int64_t)(now - self->asked);
    int64_t *usual = &self->usual[self->looks];

    if (took <= *usual)
        *usual -= STEP;
    else if (*usual < LONGEST)
        *usual += STEP;
}
