/*
 * Asleep or looking: what is quicker is done.
 */
#include "look.h"

#include "check.h"

enum { CHANCES = 6400 };

static rl_look look;

/* How often it is looked for answers that take so long, in nanoseconds. */
static int looks_of(uint64_t asleep, uint64_t looking)
{
    uint64_t now = 1000;
    int i, looks = 0;

    for (i = 0; i < CHANCES; i++) {
        int is_looked_for = rl_look_begin(&look, now);

        looks += is_looked_for;
        now += is_looked_for ? looking : asleep;
        rl_look_end(&look, now);
    }
    return looks;
}

static void it_is_looked_for_what_comes_sooner_so(void)
{
    memset(&look, 0, sizeof(look));
    CHECK(looks_of(50000, 25000) > CHANCES * 9 / 10);
}

static void it_is_not_looked_for_what_does_not(void)
{
    memset(&look, 0, sizeof(look));
    CHECK(looks_of(24000, 35000) < CHANCES / 20);
    memset(&look, 0, sizeof(look));
    CHECK(looks_of(30000, 27000) < CHANCES / 20);
    memset(&look, 0, sizeof(look));
    CHECK(looks_of(5000000, 5000000) < CHANCES / 20);
}

static void a_change_is_noticed(void)
{
    memset(&look, 0, sizeof(look));
    looks_of(50000, 25000);
    CHECK(looks_of(25000, 35000) < CHANCES / 2);
    CHECK(looks_of(25000, 35000) < CHANCES / 20);
    CHECK(looks_of(50000, 25000) > CHANCES / 2);
    CHECK(looks_of(50000, 25000) > CHANCES * 9 / 10);
}

static void a_few_slow_answers_change_nothing(void)
{
    int i;

    memset(&look, 0, sizeof(look));
    looks_of(50000, 25000);
    for (i = 0; i < 5; i++) {
        rl_look_begin(&look, 0);
        rl_look_end(&look, (uint64_t)1 << 60);
    }
    CHECK(looks_of(50000, 25000) > CHANCES * 9 / 10);
}

int main(void)
{
    RUN(it_is_looked_for_what_comes_sooner_so);
    RUN(it_is_not_looked_for_what_does_not);
    RUN(a_change_is_noticed);
    RUN(a_few_slow_answers_change_nothing);
    return check_end();
}
