/*
 * Build tool: turns Lua files into one C file that defines rl_embedded.
 *
 *     embed lua lua/rlock.lua lua/rlock/lock.lua ... > embedded.c
 *
 * Names are relative to the first argument, a folder. Byte arrays are used
 * because C limits the length of string literals.
 */
#include <stdio.h>
#include <string.h>

static int put_file(const char *path, int number)
{
    FILE *file = fopen(path, "rb");
    int c, column = 0;

    if (file == NULL) {
        perror(path);
        return -1;
    }
    printf("\nstatic const unsigned char text_%d[] = {\n", number);
    while ((c = getc(file)) != EOF) {
        printf("%d,", c);
        if (++column % 16 == 0)
            putchar('\n');
    }
    puts("0 };");
    if (ferror(file)) {
        perror(path);
        fclose(file);
        return -1;
    }
    return fclose(file);
}

static const char *name_of(const char *path, const char *folder)
{
    size_t length = strlen(folder);

    if (strncmp(path, folder, length) == 0 && path[length] == '/')
        return path + length + 1;
    return path;
}

int main(int argc, char **argv)
{
    int i;

    if (argc < 2) {
        fputs("usage: embed FOLDER FILE... > embedded.c\n", stderr);
        return 2;
    }
    puts("/* Written by embed.c from the files of lua/. */");
    puts("#include \"embed.h\"");
    for (i = 2; i < argc; i++)
        if (put_file(argv[i], i) != 0)
            return 1;
    puts("\nconst struct rl_embedded rl_embedded[] = {");
    for (i = 2; i < argc; i++)
        printf("    { \"%s\", text_%d, sizeof(text_%d) - 1 },\n",
               name_of(argv[i], argv[1]), i, i);
    puts("    { NULL, NULL, 0 }\n};");
    return fflush(stdout) != 0 || ferror(stdout);
}
