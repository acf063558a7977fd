//! The attribute `bellwether::test`: what it runs, and what it says when a test goes wrong.

use std::process::Command;

use bellwether::{Result, Sum, Team, World};

#[bellwether::test(ranks = [1, 2, 3, 7])]
fn everyone_counts(world: &World) -> Result<()> {
    let mut ranks = [1];
    Team::world(world)?.allreduce(&mut ranks, Sum)?;
    assert_eq!(ranks[0], world.size());
    Ok(())
}

#[bellwether::test(ranks = [1, 2, 3], launch = "processes", deadline = "40s")]
fn everyone_counts_in_processes(world: &World) -> Result<()> {
    let team = Team::world(world)?;
    assert_eq!(team.allgather(&[std::process::id()])?.len(), world.size());
    let half = team.split(Some(world.rank() as u64 % 2), 0)?.expect("a colour");
    let mut sum = [world.rank()];
    half.allreduce(&mut sum, Sum)?;
    assert_eq!(sum[0], half.world_ranks().sum());
    Ok(())
}

#[bellwether::test]
fn no_result_is_needed(world: &World) {
    assert!(world.size() <= 3);
}

/// Run by `a_failing_test_says_where_each_rank_is` alone.
#[bellwether::test(ranks = [3], deadline = "500ms")]
#[ignore = "hangs on purpose: another test runs it and reads what its deadline says"]
fn one_rank_does_not_come(world: &World) -> Result<()> {
    let bell = world.bell()?;
    if world.rank() == 1 {
        bell.wait(1)?;
    }
    world.barrier()
}

#[bellwether::test(ranks = [2], launch = "processes", deadline = "1s")]
#[ignore = "hangs on purpose: another test runs it and reads what its deadline says"]
fn one_process_does_not_come(world: &World) -> Result<()> {
    let bell = world.bell()?;
    if world.rank() == 1 {
        bell.wait(1)?;
    }
    world.barrier()
}

#[bellwether::test(ranks = [2])]
#[should_panic(expected = "what it said")]
fn errors_fail_the_test(world: &World) -> std::result::Result<(), String> {
    if world.rank() == 1 { Err("what it said".into()) } else { Ok(()) }
}

#[test]
fn a_failing_test_says_where_each_rank_is() {
    for name in ["one_rank_does_not_come::ranks_3", "one_process_does_not_come::ranks_2"] {
        let program = std::env::current_exe().expect("a running test has a file");
        let output = Command::new(program).args([name, "--exact", "--ignored", "--nocapture"]).output();
        let output = output.expect("this program starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success(), "{name}: {said}");
        assert!(said.contains("rank 0 waits: barrier"), "{name}: {said}");
        assert!(said.contains("rank 1 waits: waiting for a bell"), "{name}: {said}");
        // Ranks that are processes are ended by their launcher.
        assert!(name.contains("process") || said.contains("the job has passed its deadline"), "{name}: {said}");
    }
}
