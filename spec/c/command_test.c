/*
 * The bytes of commands on their way to the socket, which takes them in parts.
 */
#include "command.h"
#include "check.h"

static char expected[4096], sent[4096];
static size_t taken;

static int add(rl_commands *self, const char *word)
{
    const char *argv[2] = { "ECHO", word };
    size_t length[2] = { 4, strlen(word) };
    size_t used = strlen(expected);

    snprintf(expected + used, sizeof(expected) - used,
             "*2\r\n$4\r\nECHO\r\n$%zu\r\n%s\r\n", length[1], word);
    return rl_commands_add(self, 2, argv, length);
}

static void take(rl_commands *self, size_t count)
{
    memcpy(sent + taken, self->text + self->first, count);
    taken += count;
    rl_commands_sent(self, count);
}

static void parts_are_sent_in_order_however_it_grows(void)
{
    rl_commands commands = { 0 };
    int i;

    for (i = 0; i < 60; i++) {
        CHECK(add(&commands, i % 2 ? "a longer word" : "word") == 0);
        take(&commands, 20);
    }
    CHECK(commands.size <= 4096);
    take(&commands, commands.end - commands.first);
    CHECK(commands.end == 0);
    CHECK(taken == strlen(expected));
    CHECK(memcmp(sent, expected, taken) == 0);
    rl_commands_free(&commands);
}

static void a_large_command_leaves_no_memory(void)
{
    static char word[100000];
    const char *argv[1] = { word };
    size_t length[1] = { sizeof(word) };
    rl_commands commands = { 0 };

    memset(word, 'x', sizeof(word));
    CHECK(rl_commands_add(&commands, 1, argv, length) == 0);
    CHECK(commands.end - commands.first
          == strlen("*1\r\n$100000\r\n\r\n") + sizeof(word));
    rl_commands_sent(&commands, commands.end);
    CHECK(commands.size <= 4096);
    CHECK(rl_commands_add(&commands, 1, argv, (size_t[]){ 2 }) == 0);
    CHECK(memcmp(commands.text, "*1\r\n$2\r\nxx\r\n", commands.end) == 0);
    rl_commands_free(&commands);
}

int main(void)
{
    RUN(parts_are_sent_in_order_however_it_grows);
    RUN(a_large_command_leaves_no_memory);
    return check_end();
}
