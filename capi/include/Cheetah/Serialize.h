/*
 * Cheetah::Serialize: how values travel between MatchingHandlers. Part of Cheetah/Cheetah.h.
 */
#ifndef BELLWETHER_CHEETAH_SERIALIZE_H
#define BELLWETHER_CHEETAH_SERIALIZE_H

#include <cstddef>
#include <cstring>
#include <new>
#include <string>
#include <vector>

namespace Cheetah {

/* The usual way: a copy of the value is made in the buffer, and the receiver uses it there. */
struct CHEETAH {
    CHEETAH() {}
};

/* Arrays of values: their number is given beside them. */
struct ARRAY {
    ARRAY() {}
};

namespace detail {

/* Buffers are aligned as a double, and so is each value in them. */
inline std::size_t rounded(std::size_t size) { return (size + sizeof(double) - 1) / sizeof(double) * sizeof(double); }

/* A message has fewer bytes than the type that was requested. */
struct TooShort {
    explicit TooShort(std::size_t bytes) : needed(bytes) {}
    std::size_t needed;
};

/* The message that is being unpacked, as long as this lives. */
class Limit {
public:
    Limit(const char *begin, std::size_t length) {
        range()[0] = begin;
        range()[1] = begin + length;
    }
    ~Limit() { range()[0] = range()[1] = 0; }

    /* Checks that `count` elements of `size` bytes at `start` are inside, if the message is where `start` is. */
    static void check(const char *start, std::size_t count, std::size_t size) {
        const char *const begin = range()[0], *const end = range()[1];
        if (begin != 0 && start >= begin && start <= end && count > static_cast<std::size_t>(end - start) / size)
            throw TooShort(static_cast<std::size_t>(-1));
    }

private:
    Limit(const Limit &);
    Limit &operator=(const Limit &);

    static const char **range() {
        static const char *both[2] = {0, 0};
        return both;
    }
};

/* How a value travels in the usual way, if the program does not specialise Serialize<CHEETAH, T>. */
template <class T> class Usual {
public:
    static std::size_t size(const T &) { return rounded(sizeof(T)); }

    static std::size_t pack(const T &value, char *buffer) {
        new (static_cast<void *>(buffer)) T(value);
        return rounded(sizeof(T));
    }

    static std::size_t unpack(T *&value, char *buffer) {
        Limit::check(buffer, sizeof(T), 1);
        value = static_cast<T *>(static_cast<void *>(buffer));
        return rounded(sizeof(T));
    }

    static void cleanup(T *value) { value->~T(); }
};

} // namespace detail

/*
 * What a program specialises for types of its own, and for tags of its own:
 *
 *   static std::size_t size(const T &value);           bytes that `pack` writes; int and long will do, too
 *   static std::size_t pack(const T &value, char *);   writes them; the buffer is aligned as a double
 *   static std::size_t unpack(T *&value, char *);      makes the value; returns the bytes that it has read. The value may
 *                                                      point into the buffer, which stays until `cleanup` has returned
 *   static void cleanup(T *value);                     ends what `unpack` has made
 *
 * The type sent and the type received may differ: what the sender's `pack` writes is what the receiver's `unpack` reads.
 * Inside its own `pack` a program may use those of other types one after the other; each moves the buffer on by what it returns.
 */
template <class Tag, class T> class Serialize {};

/*
 * Any type that can be copied and that holds no pointers. std::string and std::vector, also of each other, travel with their
 * elements. Programs may specialise this for any type, those two as well.
 */
template <class T> class Serialize<CHEETAH, T> : public detail::Usual<T> {};

/* Arrays of a type that memcpy can copy. The receiver uses the elements in the buffer. */
template <class T> class Serialize<ARRAY, T> {
public:
    static std::size_t size(const T *, std::size_t count) {
        return detail::rounded(sizeof(std::size_t)) + detail::rounded(count * sizeof(T));
    }

    static std::size_t pack(const T *items, char *buffer, std::size_t count) {
        const std::size_t head = Serialize<CHEETAH, std::size_t>::pack(count, buffer);
        if (count > 0)
            std::memcpy(buffer + head, static_cast<const void *>(items), count * sizeof(T));
        return size(items, count);
    }

    /* Sets `count`, of any type of number. */
    template <class Count> static std::size_t unpack(T *&items, char *buffer, Count &count) {
        std::size_t *number;
        const std::size_t head = Serialize<CHEETAH, std::size_t>::unpack(number, buffer);
        detail::Limit::check(buffer + head, *number, sizeof(T));
        count = static_cast<Count>(*number);
        items = static_cast<T *>(static_cast<void *>(buffer + head));
        return size(items, *number);
    }

    static void cleanup(T *) {}
};

namespace detail {

/* Numbers, which lie in buffers as they do in a vector. */
template <class T> struct Plain {
    enum { yes = 0 };
};
#define BELLWETHER_PLAIN(type)                                                                                       \
    template <> struct Plain<type> {                                                                                 \
        enum { yes = 1 };                                                                                            \
    }
BELLWETHER_PLAIN(char);
BELLWETHER_PLAIN(signed char);
BELLWETHER_PLAIN(unsigned char);
BELLWETHER_PLAIN(short);
BELLWETHER_PLAIN(unsigned short);
BELLWETHER_PLAIN(int);
BELLWETHER_PLAIN(unsigned int);
BELLWETHER_PLAIN(long);
BELLWETHER_PLAIN(unsigned long);
BELLWETHER_PLAIN(float);
BELLWETHER_PLAIN(double);
#undef BELLWETHER_PLAIN

/* The elements of a vector, one after the other. */
template <class T, int plain> class Elements {
public:
    template <class V> static std::size_t size(const V &values) {
        std::size_t all = 0;
        for (typename V::const_iterator at = values.begin(); at != values.end(); ++at)
            all += static_cast<std::size_t>(Serialize<CHEETAH, T>::size(*at));
        return all;
    }

    template <class V> static std::size_t pack(const V &values, char *buffer) {
        std::size_t all = 0;
        for (typename V::const_iterator at = values.begin(); at != values.end(); ++at)
            all += static_cast<std::size_t>(Serialize<CHEETAH, T>::pack(*at, buffer + all));
        return all;
    }

    template <class V> static std::size_t unpack(V &values, std::size_t count, char *buffer) {
        std::size_t all = 0;
        for (std::size_t i = 0; i < count; i++) {
            T *value;
            all += static_cast<std::size_t>(Serialize<CHEETAH, T>::unpack(value, buffer + all));
            values.push_back(*value);
            Serialize<CHEETAH, T>::cleanup(value);
        }
        return all;
    }
};

template <class T> class Elements<T, 1> {
public:
    template <class V> static std::size_t size(const V &values) { return rounded(values.size() * sizeof(T)); }

    template <class V> static std::size_t pack(const V &values, char *buffer) {
        if (!values.empty())
            std::memcpy(buffer, &values[0], values.size() * sizeof(T));
        return size(values);
    }

    template <class V> static std::size_t unpack(V &values, std::size_t count, char *buffer) {
        Limit::check(buffer, count, sizeof(T));
        const T *first = static_cast<const T *>(static_cast<const void *>(buffer));
        values.assign(first, first + count);
        return size(values);
    }
};

/* A number of elements, and the elements. */
template <class V, class T> class Counted {
public:
    static std::size_t size(const V &values) {
        return rounded(sizeof(std::size_t)) + Elements<T, Plain<T>::yes>::size(values);
    }

    static std::size_t pack(const V &values, char *buffer) {
        const std::size_t head = Usual<std::size_t>::pack(values.size(), buffer);
        return head + Elements<T, Plain<T>::yes>::pack(values, buffer + head);
    }

    static std::size_t unpack(V *&values, char *buffer) {
        std::size_t *count;
        const std::size_t head = Usual<std::size_t>::unpack(count, buffer);
        V *made = new V;
        try {
            const std::size_t all = head + Elements<T, Plain<T>::yes>::unpack(*made, *count, buffer + head);
            values = made;
            return all;
        } catch (...) {
            delete made;
            throw;
        }
    }

    static void cleanup(V *values) { delete values; }
};

template <class T, class A> class Usual<std::vector<T, A> > : public Counted<std::vector<T, A>, T> {};
template <class C, class R, class A>
class Usual<std::basic_string<C, R, A> > : public Counted<std::basic_string<C, R, A>, C> {};

} // namespace detail

} // namespace Cheetah

#endif
