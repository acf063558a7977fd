#include <GASPI.h>
#include <stdio.h>

#define TRY(call) do { if ((call) != GASPI_SUCCESS) return 1; } while (0)

int main(void) {
    gaspi_rank_t me, n;
    gaspi_queue_id_t queue;
    gaspi_pointer_t memory;
    gaspi_notification_id_t id;
    gaspi_notification_t value;
    unsigned long mine, all;
    int *inbox;

    TRY(gaspi_proc_init(GASPI_BLOCK));
    TRY(gaspi_proc_rank(&me));
    TRY(gaspi_proc_num(&n));
    TRY(gaspi_segment_create(0, 1024, GASPI_GROUP_ALL, GASPI_BLOCK, GASPI_MEM_INITIALIZED));
    TRY(gaspi_segment_ptr(0, &memory));
    TRY(gaspi_queue_create(&queue, GASPI_BLOCK));

    /* From offset 0 here to offset 512 at the neighbour, with notification 7 after it. */
    inbox = memory;
    inbox[0] = me;
    TRY(gaspi_write_notify(0, 0, (gaspi_rank_t)((me + 1) % n), 0, 512, sizeof(int), 7, 1, queue, GASPI_BLOCK));
    TRY(gaspi_notify_waitsome(0, 0, 10, &id, GASPI_BLOCK));
    TRY(gaspi_notify_reset(0, id, &value));
    mine = (unsigned long)inbox[128];

    TRY(gaspi_allreduce(&mine, &all, 1, GASPI_OP_SUM, GASPI_TYPE_ULONG, GASPI_GROUP_ALL, GASPI_BLOCK));
    if (me == 0) printf("sum %lu\n", all);
    TRY(gaspi_wait(queue, GASPI_BLOCK));
    TRY(gaspi_queue_delete(queue));
    TRY(gaspi_barrier(GASPI_GROUP_ALL, GASPI_BLOCK));
    TRY(gaspi_proc_term(GASPI_BLOCK));
    return 0;
}
