//! Faces go to a GASPI segment by `write_notify`, on a queue for each direction.

use bellwether::gaspi::Timeout::Block;
use bellwether::gaspi::{Code, Gaspi, Notification, Queue, Result, Segment, codes};

use super::{DIRECTIONS, Exchange, Field, Part, opposite};

/// Bytes of a temperature.
const CELL: usize = size_of::<f64>();
/// Notifications of faces: two for each direction. That of a rank's part for rank 0 follows them.
const FACES: u32 = 2 * DIRECTIONS as u32;

/// The exchange by notifications.
#[derive(Debug)]
pub struct Notified<'s> {
    gaspi: &'s Gaspi<'s>,
    segment: &'s Segment<'s>,
    part: Part,
    /// A queue for each direction: a wait for one face does not wait for the others.
    queues: Vec<Queue<'s>>,
    /// Two for each direction, used in turn, as the faces.
    arrived: Vec<Notification<'s>>,
    /// Exchanges so far.
    done: u64,
}

/// Bytes of the segment: two faces from and to each direction, and room for the numbers that all ranks send to rank 0.
pub fn segment_bytes(part: &Part, ranks: usize, most: usize) -> u64 {
    (CELL * (4 * DIRECTIONS * part.largest_face() + ranks * most)) as u64
}

fn to_bytes(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn from_bytes(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(CELL).map(|cell| f64::from_ne_bytes(cell.try_into().expect("eight bytes"))).collect()
}

impl<'s> Notified<'s> {
    /// An exchange in a segment of [`segment_bytes`].
    ///
    /// # Errors
    /// The network has no further queue.
    pub fn new(gaspi: &'s Gaspi<'s>, segment: &'s Segment<'s>, part: &Part) -> Result<Notified<'s>> {
        let queues = (0..DIRECTIONS).map(|_| gaspi.queue(Block)).collect::<Result<_>>()?;
        let arrived = (0..FACES).map(|id| segment.notification(id)).collect::<Result<_>>()?;
        Ok(Notified { gaspi, segment, part: part.clone(), queues, arrived, done: 0 })
    }

    /// Which of the faces of a direction it is now.
    fn turn(&self, direction: usize) -> usize {
        2 * direction + (self.done % 2) as usize
    }

    /// Where a face arrives, and behind those where it leaves.
    fn offset(&self, face: usize) -> u64 {
        (CELL * face * self.part.largest_face()) as u64
    }

    /// Gathers the numbers of each rank, `most` at most, on rank 0. Collective.
    ///
    /// # Errors
    /// A rank was lost.
    pub fn gather(&self, mine: &[f64], most: usize) -> Result<Option<Vec<Vec<f64>>>> {
        let offset = |rank: u16| self.offset(4 * DIRECTIONS) + (CELL * most * usize::from(rank)) as u64;
        let (me, n) = (self.gaspi.rank(), self.gaspi.size());
        let bytes = (CELL * mine.len()) as u64;
        self.segment.write(offset(me), &to_bytes(mine))?;
        let given = |rank: u16| self.segment.notification(FACES + u32::from(rank));
        if me != 0 {
            let here = self.segment.here(offset(me)..offset(me) + bytes);
            let queue = &self.queues[0];
            queue.write_notify(here, self.segment.there(0, offset(me)), given(me)?.signal(), 1)?;
            queue.wait(Block)?;
            return Ok(None);
        }
        let mut all = Vec::new();
        for rank in 0..n {
            if rank != 0 {
                given(rank)?.wait(Block)?;
            }
            let mut bytes = vec![0; CELL * most];
            self.segment.read(offset(rank), &mut bytes)?;
            all.push(from_bytes(&bytes));
        }
        Ok(Some(all))
    }
}

impl Exchange for Notified<'_> {
    type Error = Code;

    fn send(&mut self, field: &Field) -> Result<()> {
        for direction in 0..DIRECTIONS {
            let Some(rank) = self.part.neighbour(direction) else { continue };
            let queue = &self.queues[direction];
            // The face before the last one has left this place.
            queue.wait(Block)?;
            let face = to_bytes(&field.pack(direction));
            let leaves = self.offset(2 * DIRECTIONS + self.turn(direction));
            self.segment.write(leaves, &face)?;
            let there = self.turn(opposite(direction));
            queue.write_notify(
                self.segment.here(leaves..leaves + face.len() as u64),
                self.segment.there(rank as u16, self.offset(there)),
                self.arrived[there].signal(),
                1 + (self.done % 1_000_000) as u32,
            )?;
        }
        Ok(())
    }

    fn receive(&mut self, field: &mut Field) -> Result<()> {
        for direction in 0..DIRECTIONS {
            if self.part.neighbour(direction).is_none() {
                continue;
            }
            let turn = self.turn(direction);
            // The face of another exchange would be a bug here.
            if self.arrived[turn].wait(Block)? != 1 + (self.done % 1_000_000) as u32 {
                return Err(Code(codes::ERROR));
            }
            let mut face = vec![0; CELL * self.part.face(direction)];
            self.segment.read(self.offset(turn), &mut face)?;
            field.unpack(direction, &from_bytes(&face));
        }
        self.done += 1;
        Ok(())
    }

    fn barrier(&self) -> Result<()> {
        self.gaspi.all().barrier(Block)
    }
}
