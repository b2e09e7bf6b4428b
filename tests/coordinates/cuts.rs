//! Coordinates equal what slicing by hand gives, whatever the grids, formats, selections, lists and joins.

use crate::common::{Array, Folder, Random, read, run};
use crate::kit::{Group, arrays, attributes, strings};

/// The entries of each axis, picked from the whole.
fn pick(array: &Array, entries: &[&[u64]]) -> Array {
    let shape: Vec<u64> = entries.iter().map(|e| e.len() as u64).collect();
    let size = array.dtype.size();
    let mut bytes = Vec::new();
    for at in 0..shape.iter().product::<u64>() {
        let (mut rest, mut from, mut scale) = (at, 0, 1);
        for axis in (0..shape.len()).rev() {
            from += entries[axis][(rest % shape[axis]) as usize] * scale;
            rest /= shape[axis];
            scale *= array.shape[axis];
        }
        bytes.extend_from_slice(&array.bytes[from as usize * size..][..size]);
    }
    Array { shape, dtype: array.dtype, bytes }
}

/// Both arrays along their first axis.
fn joined(a: &Array, b: &Array) -> Array {
    let mut shape = a.shape.clone();
    shape[0] += b.shape[0];
    Array { shape, dtype: a.dtype, bytes: [&a.bytes[..], &b.bytes[..]].concat() }
}

/// A slice of an axis as text, and the entries that it takes.
fn slice(r: &mut Random, len: u64) -> (String, Vec<u64>) {
    let (step, start) = (r.range(1, 3), r.range(0, len / 2));
    match r.range(0, 3) {
        0 => (":".to_owned(), (0..len).collect()),
        1 => (format!("{start}::{step}"), (start..len).step_by(step as usize).collect()),
        2 => (format!("::-{step}"), (0..len).rev().step_by(step as usize).collect()),
        _ => {
            let stop = r.range(start + 1, len);
            (format!("{start}:{stop}"), (start..stop).collect())
        }
    }
}

#[test]
fn coordinates_are_cut_like_their_array() {
    let mut r = Random(4711);
    for case in 0..24 {
        let folder = Folder::new("coordinates");
        let shape = [r.range(4, 9), r.range(3, 8), r.range(3, 8)];
        let (from, to) = (r.range(2, 3) as u8, r.range(2, 3));
        let mut lengths = Random(r.next());
        let mut group =
            |name: &str, shape, first| Group::new(folder.path(name), from, shape, first, |len| lengths.range(1, len + 1));
        let first = group("a.zarr", shape, 100);
        let is_joined = case % 3 == 0;
        let (mut time, mut bounds, mut names, mut all) = (first.time, first.bounds, first.names, first.u);
        if is_joined {
            let second = group("b.zarr", [3, shape[1], shape[2]], 500);
            (time, bounds, all) = (joined(&time, &second.time), joined(&bounds, &second.bounds), joined(&all, &second.u));
            names.extend(second.names);
        }
        let input = match is_joined {
            true => "path = ['a.zarr', 'b.zarr']\nconcat = 0",
            false => "path = 'a.zarr'",
        };
        let mut kept: Vec<u64> = (0..time.shape[0]).collect();
        let keep = match r.range(0, 1) {
            0 => String::new(),
            _ => {
                kept.retain(|i| i % 3 != 1);
                let lines: Vec<String> = kept.iter().map(u64::to_string).collect();
                std::fs::write(folder.path("keep.txt"), lines.join("\n")).expect("a list");
                "keep = [{ axis = 0, file = 'keep.txt', by = 'index' }]\n".to_owned()
            }
        };
        let ((a, times), (b, ys), (c, xs)) = (slice(&mut r, kept.len() as u64), slice(&mut r, shape[1]), slice(&mut r, shape[2]));
        let times: Vec<u64> = times.iter().map(|i| kept[*i as usize]).collect();
        let select = format!("select = '{a}, {b}, {c}'");
        let (step, is_reduced) = match r.range(0, 2) {
            0 => ("", false),
            1 => ("[[step]]\nop = 'median_filter'\nsize = 3\n", false),
            _ => ("[[step]]\nop = 'mean'\naxis = 1\n", true),
        };
        let engine = format!("[engine]\nworkers = {}\nblock = {}\n", r.range(1, 3), r.pick(&["'auto'", "'source'"]));
        let job = format!(
            "[input]\n{input}\narray = 'u'\n{keep}{select}\n{step}[output]\npath = 'out.zarr'\nzarr_format = {to}\n{engine}"
        );
        run(&job, &folder.0).unwrap_or_else(|error| panic!("case {case}: {job}{error}"));
        let out = folder.path("out.zarr");
        let two = [0, 1];
        let mut want = vec!["crs", "name", "time", "time_bnds", "u", "x"];
        assert_eq!(read(&out, Some("time")), pick(&time, &[&times]), "case {case}: {job}");
        assert_eq!(read(&out, Some("time_bnds")), pick(&bounds, &[&times, &two]), "case {case}: {job}");
        assert_eq!(read(&out, Some("x")), pick(&first.x, &[&xs]), "case {case}: {job}");
        let want_names: Vec<String> = times.iter().map(|i| names[*i as usize].clone()).collect();
        assert_eq!(strings(&out, "name"), want_names, "case {case}: {job}");
        if !is_joined {
            want.push("height");
        }
        if !is_reduced {
            want.extend(["lat", "y"]);
            assert_eq!(read(&out, Some("y")), pick(&first.y, &[&ys]), "case {case}: {job}");
            assert_eq!(read(&out, Some("lat")), pick(&first.lat, &[&ys, &xs]), "case {case}: {job}");
        }
        if step.is_empty() {
            assert_eq!(read(&out, Some("u")), pick(&all, &[&times, &ys, &xs]), "case {case}: {job}");
        }
        want.sort_unstable();
        assert_eq!(arrays(&out), want, "case {case}: {job}");
        let said = attributes(&out, "u").expect("an array");
        let named = ["lat", "name", "height"].into_iter().filter(|name| want.contains(name)).collect::<Vec<_>>().join(" ");
        assert_eq!((&said["coordinates"], &said["grid_mapping"]), (&named.into(), &"crs".into()), "case {case}: {job}");
        assert_eq!(attributes(&out, "").expect("a group")["title"], "winds");
        assert_eq!(attributes(&out, "time").expect("an array")["units"], "days since 2000-01-01");
    }
}

#[test]
fn an_entry_keeps_its_coordinate() {
    let folder = Folder::new("coordinates-entry");
    let group = Group::new(folder.path("a.zarr"), 3, [5, 4, 3], 7, |len| len);
    run("[input]\npath = 'a.zarr'\narray = 'u'\nselect = '-2, :, 1'\n[output]\npath = 'out.zarr'\n", &folder.0).expect("a run");
    let out = folder.path("out.zarr");
    assert_eq!(arrays(&out), ["crs", "height", "lat", "name", "time", "time_bnds", "u", "x", "y"]);
    assert_eq!(read(&out, Some("time")).values::<i64>(), [10]);
    assert_eq!(read(&out, Some("time")).shape, [0u64; 0]);
    assert_eq!(read(&out, Some("lat")), pick(&group.lat, &[&[0, 1, 2, 3], &[1]]).reshaped(&[4]));
    assert_eq!(attributes(&out, "u").expect("an array")["coordinates"], "lat name height time x");
}

#[test]
fn a_transform_follows_its_pixels() {
    let folder = Folder::new("coordinates-transform");
    Group::new(folder.path("a.zarr"), 2, [2, 8, 6], 7, |len| len);
    let transform = |lines: &str| {
        run(&format!("[input]\npath = 'a.zarr'\narray = 'u'\n{lines}[output]\npath = 'out.zarr'\n"), &folder.0).expect("a run");
        let out = folder.path("out.zarr");
        let found = attributes(&out, "crs").expect("an array").get("GeoTransform").map(|text| text.as_str().unwrap().to_owned());
        std::fs::remove_dir_all(out).expect("an output");
        found
    };
    assert_eq!(transform("").as_deref(), Some("-0.125 0.25 0 60.25 0 -0.5"));
    assert_eq!(transform("select = ':, 2:, ::2'\n").as_deref(), Some("-0.25 0.5 0 59.25 0 -0.5"));
    assert_eq!(transform("[[step]]\nop = 'mean'\naxis = 1\n"), None);
}
