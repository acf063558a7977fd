/*
 * Cheetah's C calls: one-sided put, get and remote call between contexts, with bells that count completions.
 *
 * A context is one process of a job, numbered from 0. Start the job with `bellwether run -n 4 ./program`, with mpirun or srun,
 * which need no MPI in the library, or with `./program -np 4`.
 *
 * Source of each name:
 *   Cheetah's documentation          cheetah_core_setup, _finalize, _ncontexts, _mycontext, _put
 *   assumed, by the same pattern     cheetah_core_get, _ainvoke, _register_function, _poll, _wait, _barrier
 *   of this library                  CHEETAH_ERR_*, cheetah_error_string
 * Calls that Cheetah declares as void return a code here.
 *
 * Threads: the thread that calls cheetah_core_setup makes all other calls. From another thread they return CHEETAH_ERR_THREAD.
 * Messages move, and handlers run, only inside these calls. There is no background thread that moves them.
 *
 * Errors: every call returns a negative code if it fails. If a code other than CHEETAH_ERR_PEER, CHEETAH_ERR_FUNCTION,
 * CHEETAH_ERR_MESSAGE and CHEETAH_ERR_INTERNAL comes back, the call has sent nothing and has rung no bell. Those four can also
 * tell of an earlier call or of another context.
 */
#ifndef BELLWETHER_CHEETAH_H
#define BELLWETHER_CHEETAH_H

#ifdef __cplusplus
extern "C" {
#endif

/* Codes. */
#define CHEETAH_SUCCESS 0
/* The call was made before cheetah_core_setup or after cheetah_core_finalize, or setup was called twice. */
#define CHEETAH_ERR_STATE (-1)
/* The call was made from a thread other than the one that called cheetah_core_setup, or from a forked child. */
#define CHEETAH_ERR_THREAD (-2)
/* The context is negative, or not below cheetah_core_ncontexts(). */
#define CHEETAH_ERR_CONTEXT (-3)
/* A pointer is null or a bell is not aligned, a length or number is negative, or an option cannot be understood. */
#define CHEETAH_ERR_ARGUMENT (-4)
/* The remote address or the remote bell is not accessible memory of the remote context. */
#define CHEETAH_ERR_ADDRESS (-5)
/* A context called a function that this context has not registered, or contexts registered different functions. */
#define CHEETAH_ERR_FUNCTION (-6)
/* Another context has ended, or left, while this one needed it. */
#define CHEETAH_ERR_PEER (-7)
/* There is no memory for the message, now or ever. */
#define CHEETAH_ERR_MEMORY (-8)
/* The call blocks, and was made inside a handler. */
#define CHEETAH_ERR_HANDLER (-9)
/* The contexts could not be started, or a call of the system or of MPI failed. */
#define CHEETAH_ERR_SYSTEM (-10)
/* A message that came cannot be used. */
#define CHEETAH_ERR_MESSAGE (-11)
/* A defect of the library. */
#define CHEETAH_ERR_INTERNAL (-12)

/*
 * A function that another context calls. `who` is the calling context, `id` the function's number. `buffer` holds `length`
 * bytes, is aligned to 8 bytes, belongs to the library, and is freed when the handler returns. A handler may put, get, invoke
 * and poll, but not wait or enter a barrier. It must return: neither longjmp nor a C++ exception may leave it. In C++ programs,
 * those of Cheetah/Cheetah.h may throw.
 */
typedef void (*cheetah_handler_t)(int who, int id, void *buffer, int length);

/*
 * Starts or joins the job. Collective. Call it as early as possible. Takes the options -np N, -shmem and -mpi out of the
 * arguments. Both pointers may be null: then there are no options.
 */
int cheetah_core_setup(int *argc, char ***argv);

/*
 * Waits until all contexts call it, delivers what they sent before, and leaves the job. Collective. Afterwards every call
 * returns CHEETAH_ERR_STATE.
 */
int cheetah_core_finalize(void);

/* The number of contexts, or a negative code. */
int cheetah_core_ncontexts(void);

/* The number of this context, from 0, or a negative code. */
int cheetah_core_mycontext(void);

/*
 * Copies `length` bytes at `local` to address `remote` of `context`. Never waits for that context. The local bell rings when
 * the bytes at `local` may be changed. The remote bell, an address in that context, rings when the data is there. A bell that
 * is null does not ring; 0 bytes still ring. Operations complete in any order.
 */
int cheetah_core_put(int context, void *remote, void *local, int length, int *local_bell, int *remote_bell);

/*
 * Copies `length` bytes at address `remote` of `context` to `local`. The local bell rings when the data is at `local`. The
 * remote bell rings when the memory there may be changed. Do not touch `local`, and keep the local bell, until it has rung.
 */
int cheetah_core_get(int context, void *remote, void *local, int length, int *local_bell, int *remote_bell);

/*
 * Gives the function the next number and returns the number, or a negative code. Every context registers the same functions in
 * the same order, at any time.
 */
int cheetah_core_register_function(cheetah_handler_t function);

/*
 * Calls function `id` in `context` with a copy of `length` bytes at `buffer`, which may be changed on return; the local bell
 * rings before that. Does not wait for that context, unless the memory for messages is full.
 */
int cheetah_core_ainvoke(int context, int id, void *buffer, int length, int *local_bell);

/* Moves messages in and out and runs handlers. Returns how many messages it moved, or a negative code. */
int cheetah_core_poll(void);

/* Polls until *bell is at least `count`. Does not change the bell. */
int cheetah_core_wait(int *bell, int count);

/* Waits until all contexts have called it. Collective. */
int cheetah_core_barrier(void);

/*
 * The text of the last error of this thread's calls, empty if there was none. Valid until this thread's next call that fails.
 * A call that succeeds does not change it.
 */
const char *cheetah_error_string(void);

#ifdef __cplusplus
}
#endif

#endif
