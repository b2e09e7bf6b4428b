//! Coordinates that are torn, missing, another's, or beyond any use; and those that change.

use halostream::config::CodecName;
use serde_json::{Value, json};

use crate::common::{Array, Folder, plan, read, run, write};
use crate::kit::{Group, arrays};

const JOB: &str = "[input]\npath = 'a.zarr'\narray = 'u'\n[output]\npath = 'out.zarr'\n";

fn made(name: &str) -> (Folder, Group) {
    let folder = Folder::new(name);
    let group = Group::new(folder.path("a.zarr"), 3, [5, 4, 3], 3, |len| len.min(2));
    (folder, group)
}

#[test]
fn a_torn_chunk_is_told() {
    for select in ["", "select = '1:, ...'\n"] {
        let (folder, group) = made("coordinates-torn");
        std::fs::write(group.root.join("time/c/1"), "torn").expect("a chunk");
        let job = JOB.replace("[output]", &format!("{select}[output]"));
        let error = run(&job, &folder.0).expect_err("no run");
        assert!(error.contains("coordinate time: ") && error.contains("a.zarr/time/c/1"), "{error}");
        assert!(!folder.path("out.zarr").exists());
        let left: Vec<_> = std::fs::read_dir(&folder.0).expect("a folder").flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left, ["a.zarr"], "{select}");
    }
}

#[test]
fn missing_chunks_are_the_fill_value() {
    for select in ["", "select = '1:, ...'\n"] {
        let (folder, group) = made("coordinates-missing");
        std::fs::remove_file(group.root.join("time/c/1")).expect("a chunk");
        run(&JOB.replace("[output]", &format!("{select}[output]")), &folder.0).expect("a run");
        let out = folder.path("out.zarr");
        let source = halostream::reader::zarr::open(&out, Some("time"), halostream::config::Missing::Fill).expect("an array");
        let array = std::sync::Arc::new(source) as std::sync::Arc<dyn halostream::reader::Source>;
        let chunks = array.meta().grid.0[0].cells();
        let mut found: Vec<i64> = Vec::new();
        for chunk in 0..chunks {
            let block = halostream::reader::stage::read_whole(&array, &[chunk]).expect("a chunk");
            let range = array.meta().grid.0[0].range(chunk);
            let values: Vec<i64> = bytemuck::pod_collect_to_vec(block.raw().0);
            found.extend(&values[..(range.end - range.start) as usize]);
        }
        assert_eq!(found, if select.is_empty() { vec![3, 4, 0, 0, 7] } else { vec![4, 0, 0, 7] });
    }
}

#[test]
fn an_endless_file_is_not_copied() {
    let (folder, group) = made("coordinates-endless");
    let file = std::fs::File::options().write(true).open(group.root.join("name/c/0")).expect("a chunk");
    file.set_len(1 << 40).expect("a sparse file");
    let error = run(JOB, &folder.0).expect_err("no run");
    assert!(error.contains("coordinate name: ") && error.contains("larger than any chunk"), "{error}");
    assert!(!folder.path("out.zarr").exists());
}

/// Changes the document of a coordinate.
fn edited(group: &Group, name: &str, change: impl Fn(&mut Value)) {
    let path = group.root.join(name).join("zarr.json");
    let mut document: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("JSON");
    change(&mut document);
    std::fs::write(path, document.to_string()).expect("a file");
}

#[test]
fn hostile_metadata_costs_a_note() {
    let huge = u64::MAX / 8;
    let cases: [(&str, &str, Box<dyn Fn(&mut Value)>, &str); 6] = [
        ("time", "time", Box::new(move |d| d["shape"] = json!([huge])), "not carried"),
        ("time", "time", Box::new(|d| d["shape"] = json!([4])), "has 4 entries along time, the array has 5"),
        ("lat", "lat", Box::new(|d| d["chunk_grid"]["configuration"]["chunk_shape"] = json!([0, 1])), "do not divide"),
        ("height", "height", Box::new(|d| d["zarr_format"] = json!(9)), "neither an array nor a group"),
        (
            "time_bnds",
            "time_bnds",
            Box::new(|d| {
                d["shape"] = json!([5, 1u64 << 26]);
                d["chunk_grid"]["configuration"]["chunk_shape"] = json!([5, 1u64 << 26]);
            }),
            "larger than",
        ),
        (
            "time_bnds",
            "time_bnds",
            Box::new(|d| {
                d["shape"] = json!([5, 1u64 << 20]);
                d["chunk_grid"]["configuration"]["chunk_shape"] = json!([1, 1]);
            }),
            "more than",
        ),
    ];
    for (name, absent, change, words) in cases {
        let (folder, group) = made("coordinates-hostile");
        edited(&group, name, &change);
        let planned = plan(JOB, &folder.0).expect("a plan");
        let note = planned.notes.iter().find(|note| note.starts_with(&format!("coordinate {name} is not carried")));
        assert!(note.is_some_and(|note| note.contains(words)), "{words}: {:?}", planned.notes);
        run(JOB, &folder.0).expect("a run");
        assert!(!arrays(&folder.path("out.zarr")).contains(&absent.to_owned()));
        assert_eq!(read(&folder.path("out.zarr"), Some("u")), group.u);
    }
}

#[test]
fn names_do_not_leave_the_group() {
    let (folder, group) = made("coordinates-names");
    write(&folder.path("secret"), &Array::new::<u8>(&[5], &[1; 5]), &[5], None, CodecName::None);
    let many: Vec<String> = (0..5000).map(|n| format!("n{n}")).collect();
    for names in ["../../secret ../secret . .. / u", &many.join(" ")] {
        edited(&group, "u", |d| d["attributes"]["coordinates"] = json!(names));
        run(JOB, &folder.0).expect("a run");
        assert_eq!(arrays(&folder.path("out.zarr")), ["crs", "time", "time_bnds", "u", "x", "y"]);
        std::fs::remove_dir_all(folder.path("out.zarr")).expect("an output");
    }
}

#[test]
fn a_changed_coordinate_is_a_changed_input() {
    let (folder, group) = made("coordinates-changed");
    let hash = || plan(JOB, &folder.0).expect("a plan").hash;
    let mut seen = vec![hash()];
    assert_eq!(hash(), seen[0]);
    let other = Group::new(folder.path("b.zarr"), 3, [5, 4, 3], 60, |len| len.min(2));
    std::fs::copy(other.root.join("time/c/0"), group.root.join("time/c/0")).expect("a chunk");
    seen.push(hash());
    edited(&group, "y", |d| d["attributes"]["units"] = json!("m"));
    seen.push(hash());
    let document = std::fs::read_to_string(group.root.join("zarr.json")).expect("a file");
    std::fs::write(group.root.join("zarr.json"), document.replace("winds", "waves")).expect("a file");
    seen.push(hash());
    assert_eq!(seen.iter().collect::<std::collections::BTreeSet<_>>().len(), 4, "{seen:?}");
}

#[test]
fn the_limit_holds_coordinates() {
    let (folder, group) = made("coordinates-limit");
    let wide: Vec<f64> = (0..1 << 20).map(f64::from).collect();
    let form = crate::kit::Form { format: 3, dimensions: &["time", "w"], chunks: &[1, 1 << 20], attributes: json!({}) };
    std::fs::remove_dir_all(group.root.join("time_bnds")).expect("an array");
    crate::kit::put(&group.root, "time_bnds", &Array::new(&[1, 1 << 20], &wide), &form);
    edited(&group, "time_bnds", |d| d["shape"] = json!([5, 1 << 20]));
    let job = |memory: &str| format!("{JOB}[engine]\nmemory = '{memory}'\n");
    let Err(refused) = plan(&job("4MiB"), &folder.0) else { panic!("planned") };
    let bytes = refused.split_once("this job needs (").and_then(|(_, rest)| rest.split_once(" bytes")).expect("a number").0;
    assert!(bytes.parse::<u64>().expect("a number") > 16 << 20, "{refused}");
    run(&job(bytes), &folder.0).expect("a run");
}
