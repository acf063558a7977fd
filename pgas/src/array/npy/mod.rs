//! Arrays in NumPy's `.npy` files: each rank reads and writes its own part.

mod header;

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bellwether_runtime::{Error, Pod, Result, World};

use self::header::Header;
use super::{GlobalArray, Layout, Local};

/// Elements that NumPy has a name for.
pub trait NpyElement: Pod {
    /// Kind and size in NumPy's letters, without byte order: `f8` for `f64`.
    const NAME: &'static str;
}

macro_rules! elements {
    ($($element:ty, $name:literal;)*) => {$(
        impl NpyElement for $element {
            const NAME: &'static str = $name;
        }
    )*};
}

elements! {
    i8, "i1"; i16, "i2"; i32, "i4"; i64, "i8";
    u8, "u1"; u16, "u2"; u32, "u4"; u64, "u8";
    f32, "f4"; f64, "f8";
    // Real and imaginary part.
    [f32; 2], "c8"; [f64; 2], "c16";
}

/// This machine's byte order in NumPy's letters; single bytes have none.
const ORDER: &str = if cfg!(target_endian = "little") { "<" } else { ">" };

fn descr<T: NpyElement>() -> String {
    format!("{}{}", if size_of::<T>() == 1 { "|" } else { ORDER }, T::NAME)
}

impl<T: NpyElement, const D: usize> GlobalArray<T, D, Local> {
    /// Writes all elements to one file, as NumPy's `save` would: format 1.0, in C order. Collective; every rank writes
    /// its own part, so all must see the same folder.
    ///
    /// The file gets its name when all of it is written and on disk; if that fails, what was there before stays. A symbolic
    /// link is followed; a folder, a device, a pipe or a socket is an error.
    ///
    /// # Errors
    /// [`Error::Agreed`], on every rank, with the text of the first rank that failed; as [`World::barrier`].
    ///
    /// # Examples
    /// ```
    /// # fn main() -> bellwether::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("bellwether-npy-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder).unwrap();
    /// # let path = folder.join("plane.npy");
    /// # bellwether::threads(3, |world| {
    /// use bellwether::array::{GlobalArray, Layout};
    /// let n = world.size();
    /// let plane = GlobalArray::from_fn(world, Layout::block([4, 6], n)?, |[i, j]| (10 * i + j) as f64)?;
    /// plane.save_npy(world, &path)?;
    /// let again = GlobalArray::<f64, 2>::load_npy(world, &path, |extents| Layout::cyclic(extents, n))?;
    /// assert_eq!(again.extents(), [4, 6]);
    /// assert_eq!(again.sum(world)?, plane.sum(world)?);
    /// # Ok(()) })?.into_iter().collect::<bellwether::Result<()>>()?;
    /// # std::fs::remove_dir_all(&folder).unwrap();
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn save_npy(&self, world: &World, path: impl AsRef<Path>) -> Result<()> {
        world.within("save_npy", || {
            let path = path.as_ref();
            world.check_own(&self.memory, "save_npy")?;
            let mut number = [u64::from(std::process::id())];
            world.broadcast(0, &mut number)?;
            let (target, found) = match target_of(path) {
                Ok(target) => (target, Ok(())),
                Err(error) => (path.to_owned(), Err(error)),
            };
            let mut part = Part::of(&target, number[0]);
            let tell = |error: io::Error| tell(path, &error);
            let header = header::write(&descr::<T>(), &self.extents());
            let size = header.len() as u64 + self.len() as u64 * size_of::<T>() as u64;
            let made = found.and_then(|()| if world.rank() == 0 { part.make(&header, size) } else { Ok(()) });
            world.agree(made.map_err(tell))?;
            let written = || {
                let file = OpenOptions::new().write(true).open(&part.path)?;
                self.each_piece(false, |elements, at, local, _| {
                    let bytes = bytemuck::cast_slice(&self.local()[local..][..elements]);
                    file.write_all_at(bytes, header.len() as u64 + at * size_of::<T>() as u64)
                })?;
                file.sync_all()
            };
            world.agree(written().map_err(tell))?;
            let named = if world.rank() == 0 { part.name(&target) } else { Ok(()) };
            world.agree(named.map_err(tell))
        })
    }

    /// Reads an array from one file, as NumPy's `save` writes it: formats 1.0 to 3.0, C or Fortran order. Collective;
    /// every rank reads its own part. `layout` gets the extents, and says where the elements are to live.
    ///
    /// # Errors
    /// [`Error::Agreed`], on every rank, with the text of the first rank that failed: the file is not there, is
    /// foreign, truncated, has elements of another type or byte order, or another number of dimensions.
    /// [`Error::InvalidArgument`] for a layout of other extents. As [`GlobalArray::new`].
    #[track_caller]
    pub fn load_npy(
        world: &World,
        path: impl AsRef<Path>,
        layout: impl FnOnce([usize; D]) -> Result<Layout<D>>,
    ) -> Result<GlobalArray<T, D>> {
        world.within("load_npy", || {
            let path = path.as_ref();
            let mut facts = [0u64; 5];
            let read = if world.rank() == 0 { read_header::<T, D>(path).map(|seen| facts = seen) } else { Ok(()) };
            world.agree(read.map_err(|why| format!("{}: {why}", path.display())))?;
            world.broadcast(0, &mut facts)?;
            let [data, fortran] = [facts[0], facts[1]];
            let extents = std::array::from_fn(|d| facts[2 + d] as usize);
            let layout = layout(extents)?;
            if layout.extents() != extents {
                let why =
                    format!("{} has {extents:?} elements, and the layout is for others: {layout}", path.display());
                return Err(Error::InvalidArgument { operation: "load_npy", why });
            }
            let mut array = GlobalArray::<T, D>::new(world, layout)?;
            let read = array.read_part(path, data, fortran != 0);
            world.agree(read.map_err(|error| format!("{}: {error}", path.display())))?;
            Ok(array)
        })
    }

    fn read_part(&mut self, path: &Path, data: u64, fortran: bool) -> io::Result<()> {
        let file = File::open(path)?;
        let mut pieces = Vec::new();
        self.each_piece(fortran, |elements, at, local, step| {
            pieces.push((elements, at, local, step));
            Ok(())
        })?;
        let mut line = Vec::new();
        let all = self.local_mut();
        for (elements, at, local, step) in pieces {
            let at = data + at * size_of::<T>() as u64;
            if step == 1 {
                file.read_exact_at(bytemuck::cast_slice_mut(&mut all[local..][..elements]), at)?;
                continue;
            }
            line.resize(elements, T::zeroed());
            file.read_exact_at(bytemuck::cast_slice_mut(&mut line), at)?;
            all[local..].iter_mut().step_by(step).zip(&line).for_each(|(to, from)| *to = *from);
        }
        Ok(())
    }

    /// Calls `see` for each run of this rank's own elements that lies together in a file: how many, the number of the
    /// first in the file and in local memory, and the distance between two in local memory.
    fn each_piece(
        &self,
        fortran: bool,
        mut see: impl FnMut(usize, u64, usize, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let (place, extents, local_extents) = (self.layout.place_of(self.rank), self.extents(), self.local_extents());
        let fastest = if fortran { 0 } else { D - 1 };
        let step: usize = local_extents[fastest + 1..].iter().product();
        // Every line along the fastest dimension, by its first element.
        let mut heads = self.own;
        heads[fastest] = heads[fastest].min(1);
        let heads = super::Region { start: [0; D], extents: heads };
        for start in heads.lines() {
            for last in 0..heads.extents[D - 1] {
                let mut own = start;
                own[D - 1] = last;
                let mut index: [usize; D] = std::array::from_fn(|d| self.layout.axis(d).global(place[d], own[d]));
                for run in self.layout.axis(fastest).runs_of(place[fastest], 0..self.own[fastest]) {
                    (own[fastest], index[fastest]) = (run.local, run.global);
                    let dimensions: &mut dyn Iterator<Item = usize> =
                        if fortran { &mut (0..D).rev() } else { &mut (0..D) };
                    let at = dimensions.fold(0u64, |at, d| at * extents[d] as u64 + index[d] as u64);
                    let local = self.place(&std::array::from_fn(|d| own[d] + self.ghost[d]));
                    see(run.count, at, local, step)?;
                }
            }
        }
        Ok(())
    }
}

/// The header that rank 0 reads for all: the offset of the data, whether it is in Fortran order, and the extents.
fn read_header<T: NpyElement, const D: usize>(path: &Path) -> Result<[u64; 5], String> {
    let tell = |error: io::Error| error.to_string();
    let file = File::open(path).map_err(tell)?;
    let there = file.metadata().map_err(tell)?.len();
    let read = |range: Range<usize>| {
        let mut bytes = vec![0; range.len().min(usize::try_from(there).unwrap_or(usize::MAX))];
        file.read_exact_at(&mut bytes, range.start as u64).map(|()| bytes).map_err(tell)
    };
    let needed = header::needed(&read(0..header::START)?)?;
    let Header { descr, fortran, shape, data } = header::parse(&read(0..needed)?)?;
    check_descr::<T>(&descr)?;
    if shape.len() != D {
        return Err(format!("it has {} dimensions, {shape:?}, and the array has {D}", shape.len()));
    }
    let elements = shape.iter().try_fold(1u64, |all, side| all.checked_mul(*side));
    let wanted = elements.and_then(|all| all.checked_mul(size_of::<T>() as u64)).and_then(|all| all.checked_add(data));
    if wanted.is_none_or(|wanted| wanted > there) {
        let wanted = wanted.map_or("more than can be".into(), |wanted| wanted.to_string());
        return Err(format!("it is truncated: {shape:?} elements {descr} need {wanted} bytes, and it has {there}"));
    }
    let mut facts = [data, u64::from(fortran), 0, 0, 0];
    facts[2..2 + D].copy_from_slice(&shape);
    Ok(facts)
}

fn check_descr<T: NpyElement>(found: &str) -> Result<(), String> {
    let name = found.trim_start_matches(['<', '>', '|', '=']);
    let order = &found[..found.len() - name.len()];
    if name != T::NAME {
        return Err(format!("its elements are {found:?}, and the array's are {:?}", descr::<T>()));
    }
    if size_of::<T>() > 1 && order != ORDER && order != "=" {
        return Err(format!(
            "its elements are {found:?}, of another byte order than this machine's {:?}",
            descr::<T>()
        ));
    }
    Ok(())
}

/// A file under a temporary name. Rank 0 removes it unless it gets its final name.
struct Part {
    path: PathBuf,
    made: bool,
}

impl Part {
    /// The same on all ranks, in the same folder, so that it can be renamed.
    fn of(path: &Path, number: u64) -> Part {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Part { path: path.with_file_name(format!(".{name}.{number}.part")), made: false }
    }

    fn make(&mut self, header: &[u8], size: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create_new(true).open(&self.path)?;
        self.made = true;
        file.write_all_at(header, 0)?;
        file.set_len(size)
    }

    fn name(&mut self, path: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, path)?;
        self.made = false;
        // Syncing the folder makes the new name durable.
        File::open(folder_of(path))?.sync_all()
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The file that is to be replaced: that at the end of a symbolic link. A folder, a device, a pipe or a socket is none.
fn target_of(path: &Path) -> io::Result<PathBuf> {
    let target = match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => std::fs::canonicalize(path)?,
        _ => path.to_owned(),
    };
    match std::fs::metadata(&target) {
        Ok(found) if !found.is_file() && !found.is_dir() => {
            Err(io::Error::other("it is a device, a pipe or a socket; name a file, or what is not there yet"))
        }
        Ok(found) if found.is_dir() => Err(io::Error::other("it is a folder; name a file in it")),
        // What else is wrong is found when the file is made or renamed.
        _ => Ok(target),
    }
}

/// The error text for the file of this name, which is written in parts under another name.
fn tell(path: &Path, error: &io::Error) -> String {
    let (path, folder) = (path.display(), folder_of(path));
    match error.kind() {
        io::ErrorKind::NotFound if !folder.exists() => {
            format!("{path} cannot be written: there is no folder {}; make it first: {error}", folder.display())
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::NotADirectory => {
            format!("{path} cannot be written: no file can be made in the folder {}: {error}", folder.display())
        }
        _ => format!("{path} cannot be written: {error}"),
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.made {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
