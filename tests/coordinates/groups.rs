//! Attributes of groups, several arrays in one, consolidated metadata, jobs of several inputs, and what an output doesn't carry.

use std::path::Path;
use std::process::Command;

use halostream::config::CodecName;
use serde_json::{Value, json};

use crate::common::{Array, Folder, plan, read, run, write};
use crate::kit::{Form, Group, arrays, attributes, object, put, put_strings, strings, strings_of_first_chunk};

fn made(name: &str, format: u8) -> (Folder, Group) {
    let folder = Folder::new(name);
    let group = Group::new(folder.path("a.zarr"), format, [4, 6, 5], 3, |len| len.min(3));
    (folder, group)
}

fn json_at(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON")
}

/// Consolidates a store by hand.
fn consolidate(root: &Path, format: u8) {
    let mut metadata = json!({});
    for name in arrays(root) {
        let documents: &[&str] = if format == 2 { &[".zarray", ".zattrs"] } else { &["zarr.json"] };
        for document in documents.iter().filter(|d| root.join(&name).join(d).exists()) {
            let key = if format == 2 { format!("{name}/{document}") } else { name.clone() };
            metadata[key] = json_at(&root.join(&name).join(document));
        }
    }
    if format == 2 {
        metadata[".zgroup"] = json_at(&root.join(".zgroup"));
        metadata[".zattrs"] = json_at(&root.join(".zattrs"));
        let document = json!({"zarr_consolidated_format": 1, "metadata": metadata});
        std::fs::write(root.join(".zmetadata"), document.to_string()).expect("a file");
        return;
    }
    let mut document = json_at(&root.join("zarr.json"));
    document["consolidated_metadata"] = json!({"kind": "inline", "must_understand": false, "metadata": metadata});
    std::fs::write(root.join("zarr.json"), document.to_string()).expect("a file");
}

#[test]
fn consolidated_metadata_is_that_of_the_documents() {
    for (from, to) in [(2, 2), (2, 3), (3, 2), (3, 3)] {
        let (folder, group) = made("coordinates-consolidated", from);
        let job = format!("[input]\npath = 'a.zarr'\narray = 'u'\n[output]\npath = 'out.zarr'\nzarr_format = {to}\n");
        run(&job, &folder.0).expect("a run");
        let out = folder.path("out.zarr");
        assert!(!out.join(".zmetadata").exists());
        std::fs::remove_dir_all(&out).expect("an output");
        consolidate(&group.root, from);
        run(&job, &folder.0).expect("a run");
        let metadata = match to {
            2 => json_at(&out.join(".zmetadata"))["metadata"].clone(),
            _ => json_at(&out.join("zarr.json"))["consolidated_metadata"]["metadata"].clone(),
        };
        for name in arrays(&out) {
            let (document, key) = if to == 2 { (".zarray", format!("{name}/.zarray")) } else { ("zarr.json", name.clone()) };
            assert_eq!(metadata[key], json_at(&out.join(&name).join(document)), "{name}");
        }
        if to == 2 {
            assert_eq!(metadata[".zattrs"]["title"], "winds");
            assert_eq!(metadata["time/.zattrs"], json_at(&out.join("time/.zattrs")));
        }
    }
}

#[test]
fn several_arrays_share_their_coordinates() {
    let folder = Folder::new("coordinates-several");
    let root = folder.path("a.zarr");
    let values: Vec<f32> = (0..6 * 5 * 4).map(|i| (i * i % 17) as f32).collect();
    let form = |dimensions, chunks| Form { format: 3, dimensions, chunks, attributes: json!({"units": "m"}) };
    put(&root, "in/u", &Array::new(&[6, 5, 4], &values), &form(&["y", "x", "image"], &[3, 5, 4]));
    put(&root, "in/y", &Array::new::<i16>(&[6], &[1, 2, 3, 4, 5, 6]), &form(&["y"], &[2]));
    put(&root, "in/image", &Array::new::<i16>(&[4], &[1, 2, 3, 4]), &form(&["image"], &[2]));
    halostream::writer::zarr::create_group(&root, "in", 3, &object(json!({"title": "t"}))).expect("a group");
    let text =
        "[input]\npath = 'a.zarr'\narray = 'in/u'\n[[step]]\nop = 'ks_test'\nhalf_window = [1, 1]\n[output]\npath = 'out.zarr'\n";
    run(text, &folder.0).expect("a run");
    let out = folder.path("out.zarr");
    assert_eq!(arrays(&out), ["dist", "p", "y"]);
    assert_eq!(attributes(&out, "").expect("a group")["title"], "t");
    assert_eq!(read(&out, Some("y")).values::<i16>(), [1, 2, 3, 4, 5, 6]);

    // Alone it lies where the input lay.
    std::fs::remove_dir_all(&out).expect("an output");
    run("[input]\npath = 'a.zarr'\narray = 'in/u'\n[output]\npath = 'out.zarr'\n", &folder.0).expect("a run");
    assert_eq!(arrays(&out), ["in/image", "in/u", "in/y"]);
    assert_eq!(attributes(&out, "in").expect("a group")["title"], "t");
}

#[test]
fn the_input_that_an_output_runs_along_counts() {
    let (folder, group) = made("coordinates-inputs", 3);
    write(&folder.path("b.zarr"), &group.u, &[2, 2, 2], None, CodecName::None);
    let text = "[inputs.b]\npath = 'b.zarr'\n[inputs.a]\npath = 'a.zarr'\narray = 'u'\n[[step]]\nop = 'expression'\nformula = 'a + b'\n\
                inputs = ['a', 'b']\n[output]\npath = 'out.zarr'\n";
    run(text, &folder.0).expect("a run");
    assert!(arrays(&folder.path("out.zarr")).contains(&"time".to_owned()));
}

#[test]
fn what_stands_alone_carries_nothing() {
    let (folder, group) = made("coordinates-none", 3);
    let from = "[input]\npath = 'a.zarr'\narray = 'u'\n";
    let planned = plan(&format!("{from}[output]\npath = 'out.npy'\n"), &folder.0).expect("a plan");
    assert!(planned.surroundings.values().all(|found| found.coordinates.is_empty() && found.groups.is_empty()));
    // A stack's own axis has none, and neither has a scalar that is another one in each array.
    Group::new(folder.path("b.zarr"), 3, [4, 6, 5], 90, |len| len);
    let text = "[input]\npath = ['a.zarr', 'b.zarr']\narray = 'u'\nstack = 0\n[output]\npath = 'out.zarr'\n";
    let planned = plan(text, &folder.0).expect("a plan");
    assert!(planned.notes.iter().any(|note| note.contains("coordinate height is not carried")), "{:?}", planned.notes);
    run(text, &folder.0).expect("a run");
    let out = folder.path("out.zarr");
    assert_eq!(arrays(&out), ["crs", "lat", "name", "time", "time_bnds", "u", "x", "y"]);
    assert_eq!(read(&out, Some("time")), group.time);
    assert_eq!(attributes(&out, "u").expect("an array")["coordinates"], "lat name");
    // An output's own record is none of the next one's.
    let again = "[input]\npath = 'out.zarr'\narray = 'u'\n[output]\npath = 'again.zarr'\n";
    run(again, &folder.0).expect("a run");
    let [first, second] = ["out.zarr", "again.zarr"].map(|name| attributes(&folder.path(name), "").expect("a group"));
    assert_ne!(first["halostream"]["hash"], second["halostream"]["hash"]);
}

#[test]
fn joined_coordinates_are_of_one_kind() {
    let (folder, _) = made("coordinates-kinds", 3);
    let other = Group::new(folder.path("b.zarr"), 3, [4, 6, 5], 0, |len| len);
    let form = Form { format: 3, dimensions: &["time"], chunks: &[4], attributes: json!({"units": "days since 2001-01-01"}) };
    put(&other.root, "time", &other.time, &form);
    let text = "[input]\npath = ['a.zarr', 'b.zarr']\narray = 'u'\nconcat = 0\n[output]\npath = 'out.zarr'\n";
    let planned = plan(text, &folder.0).expect("a plan");
    let note = planned.notes.iter().find(|note| note.contains("coordinate time ")).expect("a note");
    assert!(note.contains("b.zarr") && note.contains("units"), "{note}");
    run(text, &folder.0).expect("a run");
    assert!(!arrays(&folder.path("out.zarr")).contains(&"time".to_owned()));
}

#[test]
fn a_pyramid_becomes_its_level() {
    for format in [2, 3] {
        let folder = Folder::new("coordinates-pyramid");
        let root = folder.path("a.zarr");
        let form = |chunks| Form { format, dimensions: &["y", "x"], chunks, attributes: json!({}) };
        put(&root, "0", &Array::new::<u8>(&[6, 4], &[7; 24]), &form(&[3, 3]));
        put(&root, "1", &Array::new::<u8>(&[3, 2], &[7; 6]), &form(&[3, 2]));
        let level = |path: &str, s: f64| json!({"path": path, "coordinateTransformations": [{"type": "scale", "scale": [s, s]}]});
        let axes = json!([{"name": "y", "type": "space"}, {"name": "x", "type": "space"}]);
        let multiscales = json!([{"axes": axes, "datasets": [level("0", 0.5), level("1", 1.0)], "name": "n"}]);
        let said = match format {
            2 => json!({"multiscales": multiscales, "omero": {"channels": []}}),
            _ => json!({"ome": {"version": "0.5", "multiscales": multiscales, "omero": {"channels": []}}}),
        };
        halostream::writer::zarr::create_group(&root, "", format, &object(said)).expect("a group");
        run("[input]\npath = 'a.zarr'\narray = '0'\nselect = '1::2, :'\n[output]\npath = 'out.zarr'\n", &folder.0)
            .expect("a run");
        let found = Value::Object(attributes(&folder.path("out.zarr"), "").expect("a group"));
        let image = if format == 2 { &found } else { &found["ome"] };
        assert_eq!(image["omero"], json!({"channels": []}));
        let datasets = image["multiscales"][0]["datasets"].as_array().expect("levels").clone();
        let want = json!([{"type": "scale", "scale": [1.0, 0.5]}, {"type": "translation", "translation": [0.5, 0.0]}]);
        assert_eq!(datasets, [json!({"path": "0", "coordinateTransformations": want})]);
        assert_eq!(arrays(&folder.path("out.zarr")), ["0"]);
    }
}

#[test]
fn calls_keep_what_says_which_variants_and_samples_they_are_of() {
    for format in [2, 3] {
        let folder = Folder::new("coordinates-calls");
        let root = folder.path("a.zarr");
        let form = |dimensions, chunks| Form { format, dimensions, chunks, attributes: json!({}) };
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let calls: Vec<i8> = (0..6 * 4 * 2).map(|i| i % 3 - 1).collect();
        put(&root, "call_genotype", &Array::new(&[6, 4, 2], &calls), &form(&["variants", "samples", "ploidy"], &[4, 3, 2]));
        put(&root, "call_DP", &Array::new::<i16>(&[6, 4], &[9; 24]), &form(&["variants", "samples"], &[4, 3]));
        let positions = Array::new::<i32>(&[6], &[10, 20, 30, 40, 50, 60]);
        put(&root, "variant_position", &positions, &form(&["variants"], &[4]));
        let regions = Array::new::<i32>(&[2, 3], &[0; 6]);
        put(&root, "region_index", &regions, &form(&["region_index_values", "region_index_fields"], &[2, 3]));
        let alleles = texts(&["A", "C", "G", "T", "A", "AT", "C", "", "T", "G", "CC", "C"]);
        put_strings(&root, "variant_allele", &[6, 2], &alleles, &form(&["variants", "alleles"], &[4, 2]));
        put_strings(&root, "sample_id", &[4], &texts(&["s0", "s1", "s2", "s3"]), &form(&["samples"], &[3]));
        put_strings(&root, "contig_id", &[1], &texts(&["chr1"]), &form(&["contigs"], &[1]));
        let said = object(json!({"vcf_zarr_version": "0.4", "source": "here"}));
        halostream::writer::zarr::create_group(&root, "", format, &said).expect("a group");
        std::fs::write(folder.path("keep.txt"), "s1\ns3\n").expect("a list");
        let text = "[input]\npath = 'a.zarr'\narray = 'call_genotype'\nselect = '1::2, :, :'\n\
                    keep = [{ axis = 1, file = 'keep.txt' }]\n[output]\npath = 'out.zarr'\n";
        run(text, &folder.0).expect("a run");
        let out = folder.path("out.zarr");
        assert_eq!(arrays(&out), ["call_genotype", "contig_id", "sample_id", "variant_allele", "variant_position"]);
        assert_eq!(read(&out, Some("variant_position")).values::<i32>(), [20, 40, 60]);
        assert_eq!(strings_of_first_chunk(&out, "variant_allele"), ["G", "T", "C", "", "CC", "C"]);
        assert_eq!((strings(&out, "sample_id"), strings(&out, "contig_id")), (texts(&["s1", "s3"]), texts(&["chr1"])));
        let found = attributes(&out, "").expect("a group");
        assert_eq!((&found["vcf_zarr_version"], &found["source"]), (&json!("0.4"), &json!("here")));
        let want: Vec<i8> =
            [1, 3, 5].iter().flat_map(|v| [1, 3].map(|s| (v * 4 + s) * 2)).flat_map(|i| [calls[i], calls[i + 1]]).collect();
        assert_eq!(read(&out, Some("call_genotype")).values::<i8>(), want);
    }
}

#[test]
fn plan_tells_what_is_carried() {
    let (folder, _) = made("coordinates-told", 2);
    let text = "[input]\npath = 'a.zarr'\narray = 'u'\nselect = '1:, :, :'\n[output]\npath = 'out.zarr'\n";
    std::fs::write(folder.path("job.toml"), text).expect("a job file");
    let ended = Command::new(env!("CARGO_BIN_EXE_halostream")).args(["plan", "job.toml"]).current_dir(&folder.0).output();
    let out = String::from_utf8(ended.expect("the binary starts").stdout).expect("text");
    let line = out.lines().find(|line| line.starts_with("coordinates ")).expect("a line");
    assert_eq!(line, "coordinates y, x, crs, lat, height copied; time, time_bnds, name sliced");
}

#[test]
fn partitions_carry_what_one_run_carries() {
    let (folder, group) = made("coordinates-partition", 2);
    consolidate(&group.root, 2);
    let halostream = |args: &[&str]| {
        let ended = Command::new(env!("CARGO_BIN_EXE_halostream")).args(args).current_dir(&folder.0).output();
        let ended = ended.expect("the binary starts");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    };
    let text = "[input]\npath = 'a.zarr'\narray = 'u'\nselect = ':, ::-1, :'\n[output]\npath = 'out.zarr'\n";
    std::fs::write(folder.path("job.toml"), text).expect("a job file");
    halostream(&["run", "job.toml"]);
    std::fs::rename(folder.path("out.zarr"), folder.path("whole.zarr")).expect("an output");
    for partition in ["0/3", "2/3", "1/3"] {
        assert!(!folder.path("out.zarr").exists());
        halostream(&["run", "job.toml", "--partition", partition]);
    }
    let [whole, parts] = ["whole.zarr", "out.zarr"].map(|name| folder.path(name));
    assert_eq!(arrays(&parts), ["crs", "height", "lat", "name", "time", "time_bnds", "u", "x", "y"]);
    for array in arrays(&whole) {
        assert_eq!(json_at(&parts.join(&array).join(".zarray")), json_at(&whole.join(&array).join(".zarray")), "{array}");
        if array != "name" {
            assert_eq!(read(&parts, Some(&array)), read(&whole, Some(&array)), "{array}");
        }
    }
    assert_eq!(json_at(&parts.join(".zmetadata")), json_at(&whole.join(".zmetadata")));
}
