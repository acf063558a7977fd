//! Arrays in files.

use std::path::Path;

use bellwether::array::{GlobalArray, Layout};
use bellwether::{Error, Result, World};

use super::support::{boxes, everywhere, lines, on_threads, planes, says, value};

/// What a serial program would write.
fn serial(descr: &str, shape: &str, fortran: bool, data: &[u8]) -> Vec<u8> {
    let order = if fortran { "True" } else { "False" };
    let text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}");
    let text = format!("{text:117}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    assert_eq!(bytes.len(), 128);
    bytes.extend(data);
    bytes
}

#[test]
fn saved_as_numpy_does_and_loaded_into_any_layout() {
    fn each<const D: usize>(world: &World, folder: &Path, layouts: &[Layout<D>]) -> Result<()> {
        let path = folder.join(format!("plain-{D}-{}.npy", world.size()));
        for from in layouts {
            let array = GlobalArray::from_fn(world, from.clone(), value)?;
            array.save_npy(world, &path)?;
            let extents = from.extents();
            let shape = format!("{extents:?}").replace('[', "(").replace(']', if D == 1 { ",)" } else { ")" });
            let elements = (0..from.len()).flat_map(|number| {
                let (mut rest, mut index) = (number, [0; D]);
                for d in (0..D).rev() {
                    index[d] = rest % extents[d];
                    rest /= extents[d];
                }
                value(index).to_le_bytes()
            });
            let wanted = serial("<f8", &shape, false, &elements.collect::<Vec<u8>>());
            assert!(std::fs::read(&path).expect("saved") == wanted, "{from}");
            for to in layouts {
                let loaded = GlobalArray::<f64, D>::load_npy(world, &path, |found| {
                    assert_eq!(found, extents);
                    Ok(to.clone())
                })?;
                assert!(loaded.iter().all(|(index, element)| *element == value(index)), "{from} to {to}");
            }
        }
        Ok(())
    }
    let folder = tempfile::tempdir().expect("a folder");
    everywhere("files", |world| {
        let n = world.size();
        each(world, folder.path(), &lines(17, n))?;
        each(world, folder.path(), &planes([5, 6], n))?;
        each(world, folder.path(), &boxes([3, 4, 2], n))
    });
    let left: Vec<_> = std::fs::read_dir(&folder).expect("there").map(|entry| entry.expect("there").path()).collect();
    assert!(left.iter().all(|path| path.extension().is_some_and(|end| end == "npy")), "{left:?}");
}

#[test]
fn fortran_order_is_understood() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |file: &str, shape: &str, values: Vec<i32>| {
        let path = folder.path().join(file);
        let data: Vec<u8> = values.into_iter().flat_map(i32::to_le_bytes).collect();
        std::fs::write(&path, serial("<i4", shape, true, &data)).expect("written");
        path
    };
    let plane = write("plane", "(4, 7)", (0..7).flat_map(|j| (0..4).map(move |i| 10 * i + j)).collect());
    let space = write(
        "space",
        "(2, 3, 5)",
        (0..5).flat_map(|k| (0..3).flat_map(move |j| (0..2).map(move |i| 100 * i + 10 * j + k))).collect(),
    );
    let line = write("line", "(9,)", (0..9).collect());
    everywhere("fortran order", |world| {
        let n = world.size();
        for layout in planes([4, 7], n) {
            let array = GlobalArray::<i32, 2>::load_npy(world, &plane, |_| Ok(layout))?;
            assert!(array.iter().all(|([i, j], element)| *element == (10 * i + j) as i32));
        }
        for layout in boxes([2, 3, 5], n) {
            let array = GlobalArray::<i32, 3>::load_npy(world, &space, |_| Ok(layout))?;
            assert!(array.iter().all(|([i, j, k], element)| *element == (100 * i + 10 * j + k) as i32));
        }
        let array = GlobalArray::<i32, 1>::load_npy(world, &line, |extents| Layout::cyclic(extents, n))?;
        assert!(array.iter().all(|([i], element)| *element == i as i32));
        Ok(())
    });
}

#[test]
fn bad_files_are_the_same_error_everywhere() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = serial("<f8", "(3, 4)", false, &[0; 96]);
    let mut cases: Vec<(Vec<u8>, Vec<&str>)> = vec![
        (vec![], vec!["too few"]),
        (b"\x89PNG\r\n\x1a\n and more".to_vec(), vec!["not a .npy file"]),
        (good[..good.len() - 1].to_vec(), vec!["truncated", "224", "223"]),
        (good[..60].to_vec(), vec!["ends inside its header"]),
        (good[..9].to_vec(), vec!["too few"]),
        (serial("<f4", "(3, 4)", false, &[0; 96]), vec!["<f4", "<f8"]),
        (serial("<i8", "(3, 4)", false, &[0; 96]), vec!["<i8", "<f8"]),
        (serial(">f8", "(3, 4)", false, &[0; 96]), vec![">f8", "byte order"]),
        (serial("|O", "(3, 4)", false, &[0; 96]), vec!["|O", "<f8"]),
        (serial("<f8", "(12,)", false, &[0; 96]), vec!["1 dimensions", "[12]", "2"]),
        (serial("<f8", "(3, 2, 2)", false, &[0; 96]), vec!["3 dimensions", "2"]),
        (serial("<f8", "(4294967296, 4294967296)", false, &[0; 96]), vec!["truncated", "more than can be"]),
        (serial("<f8", "(3, x)", false, &[0; 96]), vec!["its shape"]),
    ];
    let path = |number: usize| folder.path().join(format!("{number}.npy"));
    for (number, (bytes, facts)) in cases.iter_mut().enumerate() {
        std::fs::write(path(number), bytes).expect("written");
        facts.push(".npy");
    }
    everywhere("bad files", |world| {
        let n = world.size();
        let load = |path: &Path| GlobalArray::<f64, 2>::load_npy(world, path, |extents| Layout::block(extents, n));
        for (number, (_, facts)) in cases.iter().enumerate() {
            let error = load(&path(number)).expect_err("a bad file");
            assert!(matches!(error, Error::Agreed { rank: 0, .. }), "{error}");
            says::<()>(Err(error), facts);
        }
        says(load(&folder.path().join("none.npy")), &["none.npy", "No such file"]);
        says(load(folder.path()), &["directory"]);
        std::fs::write(folder.path().join("good.npy"), &good).expect("written");
        world.barrier()?;
        let other =
            GlobalArray::<f64, 2>::load_npy(world, folder.path().join("good.npy"), |_| Layout::block([4, 3], n));
        says(other, &["[3, 4]", "[4, 3]"]);
        load(&folder.path().join("good.npy")).map(drop)
    });
}

#[test]
fn a_link_leads_to_the_file_and_what_is_no_file_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    on_threads("links", &[1, 3], |world| {
        let array = GlobalArray::from_fn(world, Layout::block([100], world.size())?, |[i]| i as u16)?;
        let name = |what: &str| folder.path().join(format!("{what}-{}", world.size()));
        let (file, link, nowhere, socket) = (name("file"), name("link"), name("nowhere"), name("socket"));
        let mut listener = None;
        if world.rank() == 0 {
            std::fs::write(&file, "old").expect("a file");
            std::os::unix::fs::symlink(&file, &link).expect("a link");
            std::os::unix::fs::symlink(name("none"), &nowhere).expect("a link");
            listener = Some(std::os::unix::net::UnixListener::bind(&socket).expect("a socket"));
        }
        world.barrier()?;
        array.save_npy(world, &link)?;
        assert!(link.is_symlink());
        let again = GlobalArray::<u16, 1>::load_npy(world, &file, |extents| Layout::block(extents, world.size()))?;
        assert_eq!(again.sum(world)?, array.sum(world)?);
        says(array.save_npy(world, &nowhere), &["nowhere", "No such file"]);
        says(array.save_npy(world, &socket), &["socket", "a device, a pipe or a socket"]);
        says(array.save_npy(world, folder.path()), &["it is a folder; name a file in it"]);
        assert!(nowhere.is_symlink() && !socket.is_file() && socket.exists());
        world.barrier()?;
        drop(listener);
        Ok(())
    });
}

#[test]
fn what_cannot_be_saved_leaves_what_was_there() {
    let folder = tempfile::tempdir().expect("a folder");
    on_threads("not saved", &[1, 2, 3], |world| {
        let array = GlobalArray::from_fn(world, Layout::block([100], world.size())?, |[i]| i as u16)?;
        let nowhere = folder.path().join("none/array.npy");
        let (path, parent) = (nowhere.display().to_string(), nowhere.parent().expect("a folder").display().to_string());
        let missing = array.save_npy(world, &nowhere);
        assert!(!missing.as_ref().is_err_and(|error| error.to_string().contains(".part")), "{missing:?}");
        says(missing, &[&path, &format!("there is no folder {parent}; make it first"), "No such file"]);
        // A folder of that name: written, but it cannot be renamed.
        let taken = folder.path().join(format!("taken-{}", world.size()));
        std::fs::create_dir_all(taken.join("inside")).expect("a folder");
        world.barrier()?;
        let untaken = array.save_npy(world, &taken);
        assert!(!untaken.as_ref().is_err_and(|error| error.to_string().contains(".part")), "{untaken:?}");
        says(untaken, &[&format!("{} cannot be written", taken.display())]);
        let file = folder.path().join(format!("file-{}", world.size()));
        std::fs::create_dir_all(&file).expect("a folder");
        let file = file.join("file");
        if world.rank() == 0 {
            std::fs::write(&file, "").expect("a file");
        }
        world.barrier()?;
        says(array.save_npy(world, file.join("array.npy")), &["no file can be made in the folder", "file/array.npy"]);
        assert!(taken.join("inside").is_dir());
        // One rank alone cannot write its part.
        let other = if world.rank() == world.size() - 1 { "elsewhere/array.npy" } else { "array.npy" };
        let saved = array.save_npy(world, folder.path().join(other));
        assert!(saved.is_err());
        world.barrier()
    });
    let left: Vec<_> = std::fs::read_dir(&folder).expect("there").map(|entry| entry.expect("there").path()).collect();
    assert!(left.iter().all(|path| path.is_dir()), "{left:?}");
}
