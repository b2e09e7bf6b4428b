//! `run --verify N`: what depends on how it is cut is found, what does not is not; what can't be compared is refused.

use super::{Folder, common, halostream, job};

const INPUT: &str = "[input]\npath = \"sample:volume\"\nshape = [6, 40, 60]\nchunks = [3, 16, 16]\nseed = 5\n";

/// A job that sums over a window of radius 2 with a user's function that is given `depth`.
fn box_sum(folder: &Folder, depth: u64, more: &str) {
    job(
        folder,
        &format!(
            "{INPUT}[[step]]\nop = \"external\"\nname = \"window\"\ncommand = [{:?}]\ndepth = {depth}\nboundary = \"reflect\"\n\
             dtype = \"float64\"\nparams = {{ function = \"box_sum\", r = 2 }}\n{more}\n[output]\npath = \"out.zarr\"\n\
             chunks = [6, 16, 20]\n[engine]\nworkers = 2\nmemory = \"64MiB\"\n",
            common::child()
        ),
    );
}

#[test]
fn a_depth_that_is_too_small_is_caught() {
    let folder = Folder::new("verify-depth");
    box_sum(&folder, 2, "");
    let ended = halostream(&folder, &["run", "job.toml", "--no-sync", "--verify", "4", "--verify-seed", "11"]).done();
    let line = ended.out.lines().last().unwrap_or_default();
    assert!(
        line.starts_with("verified output: 4 of 9 blocks (")
            && line.ends_with("recomputed in other blocks and with twice the halo of window, no difference (seed 11)"),
        "{line}"
    );
    box_sum(&folder, 1, "");
    let args = ["run", "job.toml", "--no-sync", "--quiet", "--set", "output.if_exists=overwrite", "--verify", "100"];
    let ended = halostream(&folder, &args);
    assert_eq!((ended.code, ended.out.as_str()), (1, ""), "{}", ended.err);
    let words = [
        "job.toml: --verify: output `output` depends on how it is cut: ",
        " cells differ, the first at [",
        "; 9 of 9 blocks (14400 cells) were recomputed in other blocks and with twice the halo of window",
        "Raise the depth of window",
    ];
    assert!(words.iter().all(|w| ended.err.contains(w)), "{}", ended.err);
    // The job itself was done, and is not done again.
    let ended = halostream(&folder, &["run", "job.toml", "--set", "output.if_exists=overwrite"]).done();
    assert!(ended.out.contains("nothing to do"), "{}", ended.out);
}

/// Filters, a fold that a later step reads, a step of several passes, a fold and a selection that are written.
const CHAIN: &str = "[[step]]\nop = \"gaussian_filter\"\nsigma = 1.5\nboundary = [\"reflect\", \"periodic\", 2.5]\n\
    [[step]]\nop = \"max\"\n[[step]]\nop = \"expression\"\nname = \"share\"\ninputs = [\"gaussian_filter\", \"max\"]\n\
    formula = \"gaussian_filter / max\"\n[[step]]\nop = \"denoise_tv_chambolle\"\nmax_num_iter = 11\neps = 1e-3\n\
    [[step]]\nop = \"mean\"\ninputs = [\"share\"]\naxis = 0\n[[step]]\nop = \"quantile\"\nq = [0.25, 0.5]\ninputs = [\"share\"]\naxis = 2\n";

fn chain(folder: &Folder) {
    let outputs: String = ["share", "denoise_tv_chambolle", "mean", "quantile"]
        .iter()
        .map(|from| format!("[outputs.{from}]\npath = \"{from}.zarr\"\nfrom = \"{from}\"\ncodec = \"none\"\n"))
        .collect();
    job(folder, &format!("{INPUT}{CHAIN}{outputs}[engine]\nworkers = 2\nmemory = \"64MiB\"\n"));
}

#[test]
fn operators_do_not_depend_on_how_they_are_cut() {
    let folder = Folder::new("verify-chain");
    chain(&folder);
    let args = ["run", "job.toml", "--no-sync", "--verify", "1000", "--verify-seed", "3"];
    let ended = halostream(&folder, &args).done();
    for name in ["share", "denoise_tv_chambolle", "mean", "quantile"] {
        let line = ended.out.lines().find(|l| l.starts_with(&format!("verified {name}: "))).unwrap_or_default();
        assert!(line.ends_with("no difference (seed 3)") && line.contains("twice the halo of gaussian_filter"), "{}", ended.out);
    }
    // What stands is what is compared: the same command computes nothing but the comparison.
    let (chunk, other) = (folder.path("share.zarr/c/0/0/0"), folder.path("share.zarr/c/1/2/3"));
    let mut bytes = std::fs::read(&chunk).expect("a chunk");
    let place = bytes.len() / 2 / 4 * 4;
    bytes[place..place + 4].copy_from_slice(&7e5f32.to_ne_bytes());
    std::fs::write(&chunk, bytes).expect("written");
    std::fs::remove_file(&other).expect("removed");
    let ended = halostream(&folder, &args);
    assert!(ended.code == 1 && ended.out.contains("nothing to do"), "{}{}", ended.out, ended.err);
    assert!(
        ended.err.contains("output `share` depends on how it is cut") && ended.err.contains("most by 69999"),
        "{}",
        ended.err
    );
    assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
    assert_eq!(ended.out.lines().filter(|l| l.starts_with("verified ")).count(), 3, "{}", ended.out);
}

#[test]
fn few_blocks_of_many_are_the_same_by_their_seed() {
    let folder = Folder::new("verify-seed");
    chain(&folder);
    let run = |seed: &str| {
        let ended = halostream(&folder, &["run", "job.toml", "--no-sync", "--verify", "3", "--verify-seed", seed]).done();
        ended.out.lines().filter(|l| l.starts_with("verified ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let first = run("42");
    assert_eq!(run("42"), first);
    let blocks: u64 = first.iter().filter_map(|l| l.split_whitespace().nth(2)?.parse::<u64>().ok()).sum();
    assert_eq!(blocks, 3, "{first:?}");
}

#[test]
fn what_cannot_be_verified_is_refused_before_the_run() {
    let folder = Folder::new("verify-laid");
    box_sum(&folder, 1, "trim = false");
    let ended = halostream(&folder, &["run", "job.toml", "--verify", "2"]);
    assert_eq!((ended.code, ended.out.as_str()), (2, ""));
    assert!(ended.err.contains("output `output` was not verified: its cells follow the blocks"), "{}", ended.err);
    assert!(!folder.path("out.zarr").exists());
    for args in [&["run", "job.toml", "--verify", "0"][..], &["run", "job.toml", "--verify-seed", "1"]] {
        assert_eq!(halostream(&folder, args).code, 2);
    }
}
