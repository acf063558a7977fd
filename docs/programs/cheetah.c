#include <cheetah.h>
#include <stdio.h>
#include <string.h>

static long inbox, sum;
static int arrived, told, added;              /* bells */
static void *there[2];                        /* where the neighbour's inbox and bell are */

static void tell(int who, int id, void *buffer, int length) {
    (void)who, (void)id;
    memcpy(there, buffer, (size_t)length);
    told++;
}

static void add(int who, int id, void *buffer, int length) {
    (void)who, (void)id, (void)length;
    sum += *(long *)buffer;
    added++;
}

int main(int argc, char **argv) {
    if (cheetah_core_setup(&argc, &argv) != CHEETAH_SUCCESS) {
        fprintf(stderr, "%s\n", cheetah_error_string());
        return 1;
    }
    int me = cheetah_core_mycontext(), n = cheetah_core_ncontexts();
    int tells = cheetah_core_register_function(tell), adds = cheetah_core_register_function(add);
    void *mine[2] = {&inbox, &arrived};
    long value = me;
    cheetah_core_ainvoke((me + n - 1) % n, tells, mine, sizeof mine, NULL);
    cheetah_core_wait(&told, 1);
    cheetah_core_put((me + 1) % n, there[0], &value, sizeof value, NULL, there[1]);
    cheetah_core_wait(&arrived, 1);
    cheetah_core_ainvoke(0, adds, &inbox, sizeof inbox, NULL);
    if (me == 0) {
        cheetah_core_wait(&added, n);
        printf("sum %ld\n", sum);
    }
    return cheetah_core_finalize() == CHEETAH_SUCCESS ? 0 : 1;
}
