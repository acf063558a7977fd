/*
 * Cheetah::Controller: a context's access to all others. Part of Cheetah/Cheetah.h.
 */
#ifndef BELLWETHER_CHEETAH_CONTROLLER_H
#define BELLWETHER_CHEETAH_CONTROLLER_H

#include <cheetah.h>

#include <exception>
#include <stdexcept>
#include <string>

/* What the classes of these headers call. Programs use the classes. */
extern "C" {
int cheetah_controller_open(int *argc, char ***argv);
void cheetah_controller_share(void);
int cheetah_controller_close(int unwinding);
int cheetah_controller_is_valid(void);
int cheetah_controller_register(cheetah_handler_t function,
                                void (*call)(cheetah_handler_t, int, int, void *, int));
void cheetah_controller_abort(const char *text);
}

namespace Cheetah {

/* A call that failed. `code()` is one of cheetah.h, `what()` the text. */
class Error : public std::runtime_error {
public:
    Error(int code, const std::string &text) : std::runtime_error(text), code_(code) {}
    int code() const { return code_; }

private:
    int code_;
};

/*
 * A function that another context calls: the calling context, the function's number, a copy of the buffer, its bytes. The buffer
 * belongs to the library, is aligned to 8 bytes, and is gone when the function returns. The function may put, get, invoke, send,
 * request and poll, but not wait. An exception that leaves it ends the job, with the exception's text.
 */
typedef void (*Handler_t)(int who, int tag, void *buffer, int length);

namespace detail {

/* What a call returned, if that is no error. */
inline int checked(int code) {
    if (code < 0)
        throw Error(code, cheetah_error_string());
    return code;
}

inline bool unwinding() {
#if __cplusplus >= 201703L
    return std::uncaught_exceptions() > 0;
#else
    return std::uncaught_exception();
#endif
}

/* Ends the job, inside a handler of `catch (...)`. */
inline void abort_job() {
    try {
        throw;
    } catch (const std::exception &error) {
        cheetah_controller_abort(error.what());
    } catch (const std::string &text) {
        cheetah_controller_abort(text.c_str());
    } catch (const char *text) {
        cheetah_controller_abort(text);
    } catch (...) {
        cheetah_controller_abort(0);
    }
}

extern "C" inline void cheetah_cxx_call(cheetah_handler_t function, int who, int tag, void *buffer, int length) {
    try {
        function(who, tag, buffer, length);
    } catch (...) {
        abort_job();
    }
}

} // namespace detail

/*
 * Copies share the job. A program may make several controllers; all are of the same job. The last one to go finalises: it waits
 * until all contexts do so, and delivers what was sent before. While an exception unwinds the stack nothing is finalised.
 *
 * Every member function that talks to other contexts throws `Error` if it fails, and makes progress. The thread that made the first
 * controller makes all calls.
 */
class Controller {
public:
    /* Not valid until another is assigned to it. */
    Controller() : held_(false) {}

    /*
     * Starts or joins the job. Collective. Call it as early as possible. Takes the options -np N, -shmem and -mpi out of the
     * arguments. While another controller is valid, it shares that one's job.
     */
    Controller(int &argc, char **&argv) : held_(false) {
        detail::checked(cheetah_controller_open(&argc, &argv));
        held_ = true;
    }

    Controller(const Controller &other) : held_(other.held_) {
        if (held_)
            cheetah_controller_share();
    }

    Controller &operator=(const Controller &other) {
        Controller copy(other);
        const bool held = held_;
        held_ = copy.held_;
        copy.held_ = held;
        return *this;
    }

    /* Errors of the last barrier are written to stderr: a destructor does not throw. */
    ~Controller() {
        if (held_)
            cheetah_controller_close(detail::unwinding() ? 1 : 0);
    }

    /* Whether it has set up, and the job is not finalised. */
    bool isValid() const { return held_ && cheetah_controller_is_valid() != 0; }

    /* The number of contexts. */
    int ncontexts() const { return held().number(cheetah_core_ncontexts()); }

    /* The number of this context, from 0. */
    int mycontext() const { return held().number(cheetah_core_mycontext()); }

    /* Moves messages in and out, and runs handlers and functions of requests. Returns how many messages it moved. */
    int poll() const { return held().number(cheetah_core_poll()); }

    /* Polls until the bell is at least `count`. Does not change the bell. */
    void wait(int *bell, int count) const { held().number(cheetah_core_wait(bell, count)); }
    void wait(int &bell, int count) const { wait(&bell, count); }

    /* Waits until all contexts have called it. Collective. */
    void barrier() const { held().number(cheetah_core_barrier()); }

    /*
     * Copies `length` bytes at `local` to address `remote` of `context`. Never waits for that context. The local bell rings when
     * the bytes at `local` may be changed; the remote bell, an address there, when the data is in place.
     */
    void put(int context, void *remote, const void *local, int length, int *local_bell = 0, int *remote_bell = 0) const {
        held().number(
            cheetah_core_put(context, remote, const_cast<void *>(local), length, local_bell, remote_bell));
    }

    /*
     * Copies `length` bytes at `remote` of `context` to `local`. The local bell rings when the data is here; the remote one
     * when the memory there may be changed.
     */
    void get(int context, void *remote, void *local, int length, int *local_bell = 0, int *remote_bell = 0) const {
        held().number(cheetah_core_get(context, remote, local, length, local_bell, remote_bell));
    }

    /* Gives the function the next number. Every context registers the same functions in the same order. */
    int register_function(Handler_t function) const {
        held();
        return detail::checked(cheetah_controller_register(function, detail::cheetah_cxx_call));
    }

    /*
     * Calls function `id` of `context` with a copy of `length` bytes at `buffer`, which may be changed on return; the bell rings
     * before that.
     */
    void ainvoke(int context, int id, const void *buffer, int length, int *local_bell = 0) const {
        held().number(cheetah_core_ainvoke(context, id, const_cast<void *>(buffer), length, local_bell));
    }

private:
    const Controller &held() const {
        if (!held_)
            throw Error(CHEETAH_ERR_STATE, "this Cheetah::Controller is not valid: assign one that was made of argc and argv");
        return *this;
    }

    int number(int code) const { return detail::checked(code); }

    bool held_;
};

} // namespace Cheetah

#endif
