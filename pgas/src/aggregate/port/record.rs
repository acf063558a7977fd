//! The contents of a port: items of one width, or records that contain their length and their sender.

/// Bytes before a record's own: the length of both, and the sender.
const HEAD: usize = 2 * size_of::<u32>();

/// How items begin and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Each item has this many bytes.
    Fixed(usize),
    /// Each is a [`Record`].
    Records,
}

impl Form {
    /// The first of these items; `None` if there is none, or if these bytes are no items.
    #[inline]
    pub(super) fn first(self, bytes: &[u8]) -> Option<&[u8]> {
        let len = match self {
            Form::Fixed(width) => width,
            Form::Records => u32::from_ne_bytes(*bytes.first_chunk()?) as usize,
        };
        bytes.get(..len).filter(|item| self != Form::Records || item.len() >= HEAD)
    }

    pub(super) fn is_records(self) -> bool {
        self == Form::Records
    }
}

/// A record that has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'a> {
    pub(crate) from: usize,
    pub(crate) body: &'a [u8],
}

impl<'a> Record<'a> {
    /// The first of these records; `None` if there is none.
    #[inline]
    pub(crate) fn first(bytes: &'a [u8]) -> Option<Record<'a>> {
        let (head, body) = Form::Records.first(bytes)?.split_at(HEAD);
        Some(Record { from: u32::from_ne_bytes(*head.last_chunk()?) as usize, body })
    }

    /// Its bytes, with its head.
    pub(crate) fn size(&self) -> usize {
        HEAD + self.body.len()
    }

    /// All of these records.
    pub(crate) fn all(mut bytes: &'a [u8]) -> impl Iterator<Item = Record<'a>> {
        std::iter::from_fn(move || {
            let record = Record::first(bytes)?;
            bytes = &bytes[record.size()..];
            Some(record)
        })
    }
}

/// Where one record after the other is written.
#[derive(Debug)]
pub(crate) struct Draft {
    from: u32,
    bytes: Vec<u8>,
}

impl Draft {
    /// For records from this rank.
    pub(crate) fn new(from: usize) -> Draft {
        Draft { from: from as u32, bytes: Vec::new() }
    }

    /// Lets `write` append the bytes of the next one.
    #[inline]
    pub(crate) fn write<E>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
        self.bytes.clear();
        self.bytes.extend_from_slice(&[0; size_of::<u32>()]);
        self.bytes.extend_from_slice(&self.from.to_ne_bytes());
        write(&mut self.bytes)?;
        // One of 4 GiB would be longer than any buffer: it is never put.
        let len = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.bytes[..size_of::<u32>()].copy_from_slice(&len.to_ne_bytes());
        Ok(())
    }

    /// The record as it travels.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its own bytes.
    pub(crate) fn body(&self) -> &[u8] {
        &self.bytes[HEAD..]
    }
}

/// Bytes of a record with `len` bytes of payload.
pub(super) fn size(len: usize) -> usize {
    HEAD + len
}

/// Most bytes of a record's own where `size` bytes have room.
pub(super) fn room(size: usize) -> usize {
    size.saturating_sub(HEAD)
}

/// Least bytes of a buffer of records: room for a record that reports the outcome of others.
pub(super) const LEAST: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_out_as_they_went_in_and_others_end_it() {
        let mut draft = Draft::new(7);
        let mut bytes = Vec::new();
        for len in [0, 1, 300] {
            let written = draft.write(|bytes| {
                bytes.extend(vec![len as u8; len]);
                Ok::<_, ()>(())
            });
            written.expect("it is written");
            assert_eq!(draft.body().len(), len);
            bytes.extend_from_slice(draft.bytes());
        }
        let found: Vec<_> = Record::all(&bytes).map(|record| (record.from, record.body.to_vec())).collect();
        assert_eq!(found, [(7, vec![]), (7, vec![1]), (7, vec![300u32 as u8; 300])]);
        assert_eq!(Record::all(&bytes[..bytes.len() - 1]).count(), 2);
        // A length that is shorter than the record's own head.
        assert!(Record::first(&[4, 0, 0, 0, 1, 0, 0, 0, 9]).is_none() && Record::first(&[0; 20]).is_none());
        assert_eq!(Form::Fixed(3).first(&[1, 2, 3, 4]), Some(&[1, 2, 3][..]));
        assert_eq!(Form::Fixed(3).first(&[1, 2]), None);
    }
}
