//! What each descriptor in the epoll set stands for, packed into the 64 bits the kernel hands back.

use rustix::event::epoll::EventData;

/// One of a rank's two output streams, or one of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Out,
    Err,
}

impl Source {
    pub(super) const BOTH: [Source; 2] = [Source::Out, Source::Err];

    pub(super) fn index(self) -> usize {
        self as usize
    }
}

/// What is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    /// A signal has come.
    Signal,
    /// The terminal has been typed at.
    Typed,
    /// Rank 0 has read some of what was typed.
    TypedRoom,
    /// One of our own streams takes more.
    Room(Source),
    /// A rank has printed something.
    Pipe(Source, usize),
    /// A rank's process has ended.
    Exit(usize),
    /// Another host has told something, or its connection has ended.
    Host(usize),
    /// The connection to a host takes more.
    HostRoom(usize),
    /// There is standard input for a rank of another host.
    Input,
}

impl Token {
    pub(super) fn data(self) -> EventData {
        let (kind, rank) = match self {
            Token::Signal => (0, 0),
            Token::Typed => (1, 0),
            Token::TypedRoom => (2, 0),
            Token::Room(Source::Out) => (3, 0),
            Token::Room(Source::Err) => (4, 0),
            Token::Pipe(Source::Out, rank) => (5, rank),
            Token::Pipe(Source::Err, rank) => (6, rank),
            Token::Exit(rank) => (7, rank),
            Token::Host(host) => (8, host),
            Token::HostRoom(host) => (9, host),
            Token::Input => (10, 0),
        };
        EventData::new_u64((kind << 56) | rank as u64)
    }

    pub(super) fn of(data: EventData) -> Token {
        let rank = (data.u64() & ((1 << 56) - 1)) as usize;
        match data.u64() >> 56 {
            0 => Token::Signal,
            1 => Token::Typed,
            2 => Token::TypedRoom,
            3 => Token::Room(Source::Out),
            4 => Token::Room(Source::Err),
            5 => Token::Pipe(Source::Out, rank),
            6 => Token::Pipe(Source::Err, rank),
            7 => Token::Exit(rank),
            8 => Token::Host(rank),
            9 => Token::HostRoom(rank),
            _ => Token::Input,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_as_it_was() {
        for token in [
            Token::Signal,
            Token::Typed,
            Token::TypedRoom,
            Token::Room(Source::Out),
            Token::Room(Source::Err),
            Token::Pipe(Source::Out, 999_999),
            Token::Pipe(Source::Err, 0),
            Token::Exit(1 << 40),
            Token::Host(3),
            Token::HostRoom(70_000),
            Token::Input,
        ] {
            assert_eq!(Token::of(token.data()), token);
        }
    }
}
