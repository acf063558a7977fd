//! smoke
use bellwether_runtime::*;
#[test]
fn smoke() {
    for n in [1, 2, 3, 5, 7, 16] {
        let r = threads(n, |w| -> Result<()> {
            let next = (w.rank() + 1) % w.size();
            let a = w.alloc::<u64>(10)?;
            let bell = w.bell()?;
            for i in 0..1000u64 {
                a.put_bell(next, 0, i, &bell)?;
                bell.wait(i + 1)?;
                assert!(a.load(0) >= i);
                if i % 100 == 0 {
                    w.barrier()?;
                }
            }
            let mut s = [w.rank() as u64; 3];
            w.allreduce_sum(&mut s)?;
            assert_eq!(s[0] as usize, n * (n - 1) / 2);
            let c = w.call(next, 5u32, |ctx, x| (ctx.from(), x + 1))?;
            assert_eq!(c.wait()?, (w.rank(), 6));
            for i in 0..10000u64 {
                w.invoke_plain(next, i, |ctx, _: u64| {
                    ctx.state::<std::cell::Cell<u64>>().map(|c| c.set(c.get() + 1));
                })?;
            }
            w.barrier()?;
            Ok(())
        })
        .unwrap();
        r.into_iter().for_each(|r| r.unwrap());
    }
}
#[test]
fn panic_is_lost() {
    let r = std::panic::catch_unwind(|| {
        threads(3, |w| {
            if w.rank() == 1 {
                panic!("boo")
            }
            let e = w.barrier();
            println!("{e:?}");
            assert!(e.is_err());
        })
    });
    assert!(r.is_err());
}
#[test]
fn left() {
    let t = std::time::Instant::now();
    let r = threads(3, |w| {
        let b = w.bell().unwrap();
        if w.rank() == 1 {
            return Ok(0);
        }
        b.wait(1)
    })
    .unwrap();
    println!("{r:?} {:?}", t.elapsed());
    let r = threads(3, |w| {
        if w.rank() == 1 {
            return Ok(());
        }
        w.barrier()
    })
    .unwrap();
    println!("{r:?}");
}
