/*
 * Cheetah::MatchingHandler: values that one context sends and another requests. Part of Cheetah/Cheetah.h.
 */
#ifndef BELLWETHER_CHEETAH_MATCHING_HANDLER_H
#define BELLWETHER_CHEETAH_MATCHING_HANDLER_H

#include <Cheetah/Controller.h>
#include <Cheetah/Serialize.h>

#include <cstddef>
#include <cstring>

/* What the templates below call. Programs use the class. */
extern "C" {
int cheetah_matching_new(void **handler);
int cheetah_matching_delete(void *handler);
int cheetah_matching_send(const void *handler, int to, int tag, const void *bytes, std::size_t length);
void *cheetah_matching_buffer(std::size_t length, void **start);
void cheetah_matching_buffer_free(void *buffer);
int cheetah_matching_send_buffer(const void *handler, int to, int tag, void *buffer);
int cheetah_matching_request(const void *handler, int from, int tag, void *argument,
                             std::size_t (*run)(void *, char *, std::size_t), void (*give_up)(void *));
int cheetah_matching_actions(const void *handler, int context);
int cheetah_matching_messages(const void *handler, int context);
}

namespace Cheetah {

namespace detail {

/* Values of up to this many bytes are packed on the stack. */
enum { SMALL = 256 };

union Small {
    double as_double;
    long double as_long_double;
    void *as_pointer;
    char bytes[SMALL];
};

/* A buffer of the library, until it is sent. */
class Buffer {
public:
    explicit Buffer(std::size_t length) : buffer_(0), start_(0) {
        buffer_ = cheetah_matching_buffer(length, &start_);
        if (buffer_ == 0)
            throw Error(CHEETAH_ERR_MEMORY, cheetah_error_string());
    }

    ~Buffer() {
        if (buffer_ != 0)
            cheetah_matching_buffer_free(buffer_);
    }

    char *start() const { return static_cast<char *>(start_); }

    void send(const void *handler, int to, int tag) {
        void *const buffer = buffer_;
        buffer_ = 0;
        checked(cheetah_matching_send_buffer(handler, to, tag, buffer));
    }

private:
    Buffer(const Buffer &);
    Buffer &operator=(const Buffer &);

    void *buffer_, *start_;
};

template <class T> struct Mutable {
    typedef T type;
};
template <class T> struct Mutable<const T> {
    typedef T type;
};

/* A request: what runs when its value has come. */
class Request {
public:
    virtual ~Request() {}
    /* Returns how many bytes it needs. With fewer it does nothing. */
    virtual std::size_t run(char *bytes, std::size_t length) = 0;
};

extern "C" inline std::size_t cheetah_cxx_run(void *argument, char *bytes, std::size_t length) {
    Request *request = static_cast<Request *>(argument);
    std::size_t needed = 0;
    try {
        needed = request->run(bytes, length);
    } catch (const TooShort &missing) {
        needed = missing.needed;
    } catch (...) {
        abort_job();
    }
    delete request;
    return needed;
}

extern "C" inline void cheetah_cxx_give_up(void *argument) { delete static_cast<Request *>(argument); }

/* Keeps what was unpacked, until the function has returned. */
template <class Tag, class T> class Unpacked {
public:
    typedef typename Mutable<T>::type Value;

    Unpacked(char *bytes, std::size_t length) : value_(0) {
        const Limit limit(bytes, length);
        const std::size_t needed = static_cast<std::size_t>(Serialize<Tag, Value>::unpack(value_, bytes));
        if (needed > length)
            throw TooShort(needed);
    }

    ~Unpacked() { Serialize<Tag, Value>::cleanup(value_); }

    T &value() const { return *value_; }

private:
    Unpacked(const Unpacked &);
    Unpacked &operator=(const Unpacked &);

    Value *value_;
};

template <class Tag, class A, class T, class B> class LocalAndRemote : public Request {
public:
    typedef void (*Function)(A, T &);
    LocalAndRemote(Function function, const B &local) : function_(function), local_(local) {}
    std::size_t run(char *bytes, std::size_t length) {
        Unpacked<Tag, T> remote(bytes, length);
        function_(local_, remote.value());
        return 0;
    }

private:
    Function function_;
    B local_;
};

template <class Tag, class T> class Remote : public Request {
public:
    typedef void (*Function)(T &);
    explicit Remote(Function function) : function_(function) {}
    std::size_t run(char *bytes, std::size_t length) {
        Unpacked<Tag, T> remote(bytes, length);
        function_(remote.value());
        return 0;
    }

private:
    Function function_;
};

template <class A, class B> class Local : public Request {
public:
    typedef void (*Function)(A);
    Local(Function function, const B &local) : function_(function), local_(local) {}
    std::size_t run(char *, std::size_t) {
        function_(local_);
        return 0;
    }

private:
    Function function_;
    B local_;
};

class Neither : public Request {
public:
    typedef void (*Function)();
    explicit Neither(Function function) : function_(function) {}
    std::size_t run(char *, std::size_t) {
        function_();
        return 0;
    }

private:
    Function function_;
};

template <class A, class T, class N, class B> class LocalAndArray : public Request {
public:
    typedef void (*Function)(A, T *, N);
    LocalAndArray(Function function, const B &local) : function_(function), local_(local) {}
    std::size_t run(char *bytes, std::size_t length) {
        typedef typename Mutable<T>::type Item;
        Item *items;
        std::size_t count;
        {
            const Limit limit(bytes, length);
            Serialize<ARRAY, Item>::unpack(items, bytes, count);
        }
        const N counted = static_cast<N>(count);
        if (static_cast<std::size_t>(counted) != count)
            throw Error(CHEETAH_ERR_MESSAGE, "more items were sent than the count of the request's function can hold");
        function_(local_, items, counted);
        Serialize<ARRAY, Item>::cleanup(items);
        return 0;
    }

private:
    Function function_;
    B local_;
};

} // namespace detail

/*
 * A meeting point. What one context sends to another under a tag meets what that one requests from it under the same tag, at the
 * same handler, whichever comes first. Handlers are told apart by the order in which they are made, which is the same in all
 * contexts. Tags are any `int`. First in, first out for each handler, context and tag; no order between tags.
 *
 * The functions of requests run inside `request`, and inside `poll`, `wait` and `barrier` of the controller, one after the
 * other and never inside each other. They may send and request, but not wait. An exception that leaves one ends the job, with the
 * exception's text.
 *
 * All calls throw `Error` if they fail. A value that is too short for the type that its request takes is an error of the call that
 * would have run the function, and then the function does not run.
 */
class MatchingHandler {
public:
    /* Collective: every context makes the same handlers in the same order. */
    explicit MatchingHandler(const Controller &controller) : handler_(0) {
        if (!controller.isValid())
            throw Error(CHEETAH_ERR_STATE, "Cheetah::MatchingHandler: the controller is not valid");
        detail::checked(cheetah_matching_new(&handler_));
    }

    /*
     * Not collective. Requests that wait are dropped in this context, and so are messages, those that come later too.
     */
    ~MatchingHandler() { cheetah_matching_delete(handler_); }

    /*
     * Sends a value to context `to`. It is packed before this returns. Never waits, whatever that context does: what finds no
     * room on the way is kept in memory. Values may be as large as memory allows.
     */
    template <class T> void send(int to, int tag, const T &value) { sendWith(CHEETAH(), to, tag, value); }

    /* Sends a message without a value. */
    void send(int to, int tag) { detail::checked(cheetah_matching_send(handler_, to, tag, 0, 0)); }

    /* As `send`, packed as Serialize<Tag, T> says. */
    template <class Tag, class T> void sendWith(const Tag &, int to, int tag, const T &value) {
        typedef Serialize<Tag, T> Packer;
        const std::size_t size = static_cast<std::size_t>(Packer::size(value));
        if (size <= detail::SMALL) {
            detail::Small room;
            clear_end(room, size);
            Packer::pack(value, room.bytes);
            detail::checked(cheetah_matching_send(handler_, to, tag, room.bytes, size));
        } else {
            detail::Buffer buffer(size);
            Packer::pack(value, buffer.start());
            buffer.send(handler_, to, tag);
        }
    }

    /* Sends `count` values, which memcpy can copy. */
    template <class T> void sendWith(const ARRAY &, int to, int tag, const T *items, std::size_t count) {
        detail::Buffer buffer(Serialize<ARRAY, T>::size(items, count));
        Serialize<ARRAY, T>::pack(items, buffer.start(), count);
        buffer.send(handler_, to, tag);
    }

    /*
     * Runs `function` with a copy of `local` and the next value that context `from` sends: now if it is here and no other function
     * runs, else later. The value, and the buffer that it may point into, are gone when the function has returned.
     */
    template <class A, class T, class B>
    void request(int from, int tag, void (*function)(A, T &), const B &local) {
        requestWith(CHEETAH(), from, tag, function, local);
    }

    /* The function takes the value and nothing else. */
    template <class T> void request(int from, int tag, void (*function)(T &)) {
        requestWith(CHEETAH(), from, tag, function);
    }

    /* The function takes no value; if one was sent, it is dropped. */
    template <class A, class B> void request(int from, int tag, void (*function)(A), const B &local) {
        ask(from, tag, new detail::Local<A, B>(function, local));
    }

    /* The function takes nothing. */
    void request(int from, int tag, void (*function)()) { ask(from, tag, new detail::Neither(function)); }

    /* As `request`, unpacked as Serialize<Tag, T> says. */
    template <class Tag, class A, class T, class B>
    void requestWith(const Tag &, int from, int tag, void (*function)(A, T &), const B &local) {
        ask(from, tag, new detail::LocalAndRemote<Tag, A, T, B>(function, local));
    }

    template <class Tag, class T> void requestWith(const Tag &, int from, int tag, void (*function)(T &)) {
        ask(from, tag, new detail::Remote<Tag, T>(function));
    }

    /*
     * For values sent with ARRAY: the function takes the first one, and how many there are. More than an N can hold end the job, with a
     * text.
     */
    template <class A, class T, class N, class B>
    void requestWith(const ARRAY &, int from, int tag, void (*function)(A, T *, N), const B &local) {
        ask(from, tag, new detail::LocalAndArray<A, T, N, B>(function, local));
    }

    /* Requests to `context` that wait for their message, over all tags. */
    int actions(int context) const { return detail::checked(cheetah_matching_actions(handler_, context)); }

    /* Messages of `context` that wait for their request, over all tags. */
    int messages(int context) const { return detail::checked(cheetah_matching_messages(handler_, context)); }

private:
    MatchingHandler(const MatchingHandler &);
    MatchingHandler &operator=(const MatchingHandler &);

    /* The bytes that rounding adds are sent, too. */
    static void clear_end(detail::Small &room, std::size_t size) {
        const std::size_t end = size < sizeof(double) ? size : sizeof(double);
        if (end > 0)
            std::memset(room.bytes + (size - end), 0, end);
    }

    void ask(int from, int tag, detail::Request *request) {
        detail::checked(cheetah_matching_request(handler_, from, tag, request, detail::cheetah_cxx_run,
                                                 detail::cheetah_cxx_give_up));
    }

    void *handler_;
};

} // namespace Cheetah

#endif
