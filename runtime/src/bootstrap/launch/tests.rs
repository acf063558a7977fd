//! Tests of the hooks of a job's owner. The behaviour that a user sees is tested with the command.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use super::*;

/// Records what it is told; ranks are members as the test wants.
#[derive(Default)]
struct Owner {
    env: Vec<(OsString, OsString)>,
    members: Vec<Membership>,
    consequences: Vec<usize>,
    /// The membership of all ranks after the first end was announced.
    then: Option<Membership>,
    ended: Vec<(usize, Ended)>,
    /// Ranks go on after the death of another, and these have panicked.
    survives: bool,
    panicked: Vec<usize>,
}

impl Hooks for Owner {
    fn rank_env(&mut self, rank: usize) -> Vec<(OsString, OsString)> {
        let own = (OsString::from("OWN"), OsString::from(format!("own {rank}")));
        self.env.iter().cloned().chain([own]).collect()
    }

    fn rank_ended(&mut self, rank: usize, ended: &Ended) {
        self.ended.push((rank, *ended));
        if let Some(then) = self.then {
            self.members.iter_mut().for_each(|member| *member = then);
        }
    }

    fn membership(&mut self, rank: usize) -> Membership {
        self.members.get(rank).copied().unwrap_or(Membership::Absent)
    }

    fn is_consequence(&mut self, rank: usize, _: &Ended) -> bool {
        self.consequences.contains(&rank)
    }

    fn has_panicked(&mut self, rank: usize) -> bool {
        self.panicked.contains(&rank)
    }

    fn survives(&mut self) -> bool {
        self.survives
    }
}

/// Runs a shell script whose ranks end by themselves, with a limit so that no test hangs.
fn run(ranks: usize, script: &str, owner: &mut Owner) -> Outcome {
    run_for(ranks, script, owner, Duration::from_secs(60))
}

/// As [`run`], of a script whose ranks have to be ended.
fn run_hanging(ranks: usize, script: &str, owner: &mut Owner) -> Outcome {
    run_for(ranks, script, owner, Duration::from_millis(200))
}

fn run_for(ranks: usize, script: &str, owner: &mut Owner, grace: Duration) -> Outcome {
    let mut spec = JobSpec::new("/bin/sh", ["-c", script], ranks);
    spec.timeout = Some(Duration::from_secs(60));
    spec.grace = grace;
    spec.stdin = Stdin::Null;
    supervise(&spec, owner).expect("every Linux has a shell")
}

#[test]
fn a_job_of_no_ranks_is_an_error() {
    let spec = JobSpec::new("true", [""; 0], 0);
    assert!(matches!(supervise(&spec, &mut NoHooks), Err(LaunchError::NoRanks)));
}

#[test]
fn each_rank_has_its_environment_and_the_descriptor() {
    let file = File::open("/proc/version").expect("every Linux has it");
    let script = "[ \"$OWN\" = \"own $BELLWETHER_RANK\" ] && grep -q Linux /proc/self/fd/$FD";
    let mut spec = JobSpec::new("/bin/sh", ["-c", script], 3);
    spec.inherit = Some(file.as_fd());
    spec.extra_env = vec![("FD".into(), file.as_raw_fd().to_string().into())];
    spec.stdin = Stdin::Null;
    let outcome = supervise(&spec, &mut Owner::default()).expect("every Linux has a shell");
    assert_eq!(outcome.cause, None);
    assert_eq!(outcome.status(), 0);
}

#[test]
fn deaths_are_told_in_their_order() {
    // Each ends when the death of the next has been seen, after which its number means nobody any more.
    let notes = std::env::temp_dir().join(format!("bellwether-in-order-{}", std::process::id()));
    std::fs::create_dir_all(&notes).expect("a place for temporary files");
    let script = "next=$NOTES/$((BELLWETHER_RANK + 1))
        if [ $BELLWETHER_RANK != 2 ]; then
            until [ -s $next ]; do sleep 0.01; done
            while kill -0 $(cat $next) 2>/dev/null; do sleep 0.01; done
        fi
        echo $$ >$NOTES/$BELLWETHER_RANK.new; mv $NOTES/$BELLWETHER_RANK.new $NOTES/$BELLWETHER_RANK";
    let mut owner = Owner { env: vec![("NOTES".into(), notes.clone().into())], ..Owner::default() };
    assert_eq!(run(3, script, &mut owner).status(), 0);
    std::fs::remove_dir_all(&notes).expect("made above");
    let order: Vec<usize> = owner.ended.iter().map(|&(rank, _)| rank).collect();
    assert_eq!(order, [2, 1, 0]);
}

#[test]
fn the_first_death_is_the_cause_whatever_its_number() {
    // The others end when rank 2 is gone, which is when its number means nobody any more: when its death has been seen.
    let note = std::env::temp_dir().join(format!("bellwether-first-death-{}", std::process::id()));
    let script = "[ $BELLWETHER_RANK = 2 ] && { echo $$ >$NOTE.new; mv $NOTE.new $NOTE; kill -9 $$; }
        until [ -s $NOTE ]; do sleep 0.01; done
        while kill -0 $(cat $NOTE) 2>/dev/null; do sleep 0.01; done; exit 1";
    let mut owner = Owner { env: vec![("NOTE".into(), note.clone().into())], ..Owner::default() };
    let outcome = run(3, script, &mut owner);
    std::fs::remove_file(&note).expect("rank 2 has written it");
    assert!(matches!(outcome.cause, Some(Cause::Failed { rank: 2, ended: Ended::Signaled(9), .. })));
    assert_eq!(outcome.status(), 137);
    assert_eq!(outcome.ranks[0].ended, Some(Ended::Exited(1)));
}

#[test]
fn of_ranks_that_give_up_together_the_one_that_said_why_is_named() {
    // No rank is started when one has failed: the others end when rank 2 runs.
    let note = std::env::temp_dir().join(format!("bellwether-said-why-{}", std::process::id()));
    let script = "[ $BELLWETHER_RANK = 2 ] && { : >$NOTE; sleep 0.2; echo because >&2; exit 2; }
        until [ -e $NOTE ]; do sleep 0.01; done; exit 2";
    let outcome = run(3, script, &mut Owner { env: vec![("NOTE".into(), note.clone().into())], ..Owner::default() });
    std::fs::remove_file(&note).expect("rank 2 has written it");
    assert!(matches!(outcome.cause, Some(Cause::Failed { rank: 2, .. })), "{outcome:?}");
}

#[test]
fn a_consequence_is_not_the_cause_even_if_it_ended_first() {
    let note = std::env::temp_dir().join(format!("bellwether-consequence-{}", std::process::id()));
    let script = "[ $BELLWETHER_RANK = 1 ] && { : >$NOTE; sleep 0.2; exit 101; }
        until [ -e $NOTE ]; do sleep 0.01; done; exit 1";
    let env = vec![("NOTE".into(), note.clone().into())];
    let mut owner = Owner { env, consequences: vec![0, 2], ..Owner::default() };
    let outcome = run(3, script, &mut owner);
    std::fs::remove_file(&note).expect("rank 1 has written it");
    assert!(matches!(outcome.cause, Some(Cause::Failed { rank: 1, .. })), "{outcome:?}");
    assert_eq!(outcome.status(), 101);
}

#[test]
fn a_rank_that_leaves_the_others_alone_fails_the_job() {
    let script = "[ $BELLWETHER_RANK = 1 ] && { sleep 0.1; exit 0; }; exec sleep 60";
    let mut owner = Owner { members: vec![Membership::Joined; 3], ..Owner::default() };
    let outcome = run_hanging(3, script, &mut owner);
    assert!(matches!(outcome.cause, Some(Cause::LeftEarly { rank: 1, joined: true, .. })));
    assert_eq!(outcome.status(), 1);
}

#[test]
fn where_ranks_go_on_signals_and_panics_are_deaths_and_other_exits_fail_the_job() {
    let owner = || Owner { members: vec![Membership::Joined; 3], survives: true, ..Owner::default() };
    let dies = "[ $BELLWETHER_RANK = 1 ] && ";
    let outcome = run(3, &format!("{dies}kill -9 $$; sleep 0.2"), &mut owner());
    assert_eq!((outcome.status(), &outcome.cause), (0, &None));
    let outcome = run(3, &format!("{dies}exit 101; sleep 0.2"), &mut Owner { panicked: vec![1], ..owner() });
    assert_eq!((outcome.status(), &outcome.cause), (0, &None));
    for members in [Membership::Joined, Membership::Left] {
        let mut owner = Owner { members: vec![members; 3], ..owner() };
        let outcome = run_hanging(3, &format!("{dies}exit 3; exec sleep 60"), &mut owner);
        assert!(matches!(outcome.cause, Some(Cause::Failed { rank: 1, .. })), "{outcome:?}");
        assert_eq!(outcome.status(), 3);
    }
}

#[test]
fn a_rank_that_never_joins_those_who_wait_fails_the_job() {
    let script = "[ $BELLWETHER_RANK = 1 ] && exit 0; exec sleep 60";
    let members = vec![Membership::Joined, Membership::Absent, Membership::Joined];
    let outcome = run_hanging(3, script, &mut Owner { members, ..Owner::default() });
    assert!(matches!(outcome.cause, Some(Cause::LeftEarly { rank: 1, joined: false, .. })));
}

#[test]
fn a_rank_that_deserts_is_the_cause_though_the_others_leave_as_soon_as_they_are_told() {
    // Rank 1 ends when the others run: before that, ranks that have not been started could still miss it. The others end when
    // its death has been seen.
    let notes = std::env::temp_dir().join(format!("bellwether-deserts-{}", std::process::id()));
    std::fs::create_dir_all(&notes).expect("a place for temporary files");
    let script = "case $BELLWETHER_RANK in
        1) until [ -e $NOTES/0 ] && [ -e $NOTES/2 ]; do sleep 0.01; done; echo $$ >$NOTES/new; mv $NOTES/new $NOTES/1; exit 0;;
        *) : >$NOTES/$BELLWETHER_RANK; until [ -s $NOTES/1 ]; do sleep 0.01; done
           while kill -0 $(cat $NOTES/1) 2>/dev/null; do sleep 0.01; done; exit 9;;
    esac";
    let mut owner = Owner {
        env: vec![("NOTES".into(), notes.clone().into())],
        members: vec![Membership::Joined; 3],
        then: Some(Membership::Left),
        ..Owner::default()
    };
    let outcome = run(3, script, &mut owner);
    std::fs::remove_dir_all(&notes).expect("made above");
    assert!(matches!(outcome.cause, Some(Cause::LeftEarly { rank: 1, joined: true, .. })), "{outcome:?}");
}

#[test]
fn a_rank_that_never_joined_is_the_cause_though_the_others_are_gone_when_that_is_checked() {
    // The others join, and fail, between two checks of the supervisor.
    let notes = std::env::temp_dir().join(format!("bellwether-never-joined-{}", std::process::id()));
    std::fs::create_dir_all(&notes).expect("a place for temporary files");
    let script = "[ $BELLWETHER_RANK = 1 ] && { echo $$ >$NOTES/new; mv $NOTES/new $NOTES/ended; exit 0; }
        until [ -s $NOTES/ended ]; do sleep 0.01; done
        while kill -0 $(cat $NOTES/ended) 2>/dev/null; do sleep 0.01; done; : >$NOTES/$BELLWETHER_RANK; exit 9";
    let mut spec = JobSpec::new("/bin/sh", ["-c", script], 3);
    spec.timeout = Some(Duration::from_secs(20));
    spec.stdin = Stdin::Null;
    spec.extra_env = vec![("NOTES".into(), notes.clone().into())];
    let outcome = supervise(&spec, &mut Noted(&notes)).expect("every Linux has a shell");
    std::fs::remove_dir_all(&notes).expect("made above");
    assert!(matches!(outcome.cause, Some(Cause::LeftEarly { rank: 1, joined: false, .. })), "{outcome:?}");
}

/// Ranks have joined when they have left a note.
struct Noted<'a>(&'a std::path::Path);

impl Hooks for Noted<'_> {
    fn membership(&mut self, rank: usize) -> Membership {
        if self.0.join(rank.to_string()).exists() { Membership::Joined } else { Membership::Absent }
    }
}

#[test]
fn ranks_that_left_in_good_order_may_end_when_they_like() {
    let members = vec![Membership::Left; 3];
    let mut owner = Owner { members, ..Owner::default() };
    assert_eq!(run(3, "sleep 0.$BELLWETHER_RANK", &mut owner).cause, None);
}
