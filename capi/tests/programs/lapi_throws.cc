/* An exception that leaves a handler ends the job with its text. Usage: lapi_throws header | completion | inline | send | vector | error */
#include <lapi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <unistd.h>

static std::string where;

/* Destroyed by nobody: the process ends at once. */
struct Guard {
    ~Guard() { std::printf("unwound\n"), std::fflush(stdout); }
};

static void torn() {
    Guard guard;
    throw std::runtime_error("the parcel is torn");
}

static void done(lapi_handle_t *, void *) { torn(); }
static void sent(lapi_handle_t *, void *, lapi_sh_info_t *) { torn(); }

static void *arrived(lapi_handle_t *, void *, uint *, ulong *msg_len, compl_hndlr_t **then, void **) {
    if (where == "header")
        torn();
    *then = done;
    if (where == "inline")
        reinterpret_cast<lapi_return_info_t *>(msg_len)->ret_flags = LAPI_SEND_REPLY;
    return NULL;
}

static lapi_vec_t *arrived_vector(lapi_handle_t *, void *, uint *, ulong *, compl_hndlr_t **, void **) {
    torn();
    return NULL;
}

static void failed(lapi_handle_t *, int *, lapi_err_t *, int *, int *) { torn(); }

int main(int argc, char **argv) {
    lapi_handle_t handle;
    lapi_info_t info;
    lapi_cntr_t counter;
    int me, n;
    if (argc != 2)
        return 2;
    where = argv[1];
    alarm(60);
    std::memset(&info, 0, sizeof info);
    if (where == "error")
        info.err_hndlr = failed;
    if (LAPI_Init(&handle, &info) != LAPI_SUCCESS)
        return 2;
    LAPI_Qenv(handle, TASK_ID, &me);
    LAPI_Qenv(handle, NUM_TASKS, &n);
    void *handler = where == "vector" ? reinterpret_cast<void *>(arrived_vector) : reinterpret_cast<void *>(arrived);
    LAPI_Addr_set(handle, handler, 1);
    LAPI_Setcntr(handle, &counter, 0);
    LAPI_Gfence(handle);
    if (me == 0) {
        if (where == "vector") {
            lapi_vec_t vector;
            std::memset(&vector, 0, sizeof vector);
            LAPI_Amsendv(handle, n - 1, reinterpret_cast<void *>(1), NULL, 0, &vector, NULL, NULL, &counter);
        } else if (where == "send") {
            lapi_xfer_t xfer;
            std::memset(&xfer, 0, sizeof xfer);
            xfer.Am.Xfer_type = LAPI_AM_XFER;
            xfer.Am.tgt = n - 1;
            xfer.Am.hdr_hdl = 1;
            xfer.Am.shdlr = sent;
            LAPI_Xfer(handle, &xfer);
        } else {
            /* No header handler is set at the second index, and the error handler is told. */
            void *index = reinterpret_cast<void *>(where == "error" ? 2 : 1);
            LAPI_Amsend(handle, n - 1, index, NULL, 0, NULL, 0, NULL, NULL, &counter);
        }
    }
    int code = LAPI_Waitcntr(handle, &counter, 1, NULL);
    std::printf("task %d: %d\n", me, code);
    std::fflush(stdout);
    _exit(code == LAPI_ERR_PEER_LOST ? 3 : 4);
}
