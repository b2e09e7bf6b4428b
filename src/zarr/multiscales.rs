//! Pyramids of images (OME-NGFF 0.4: attributes of a group of Zarr format 2; 0.5: under `ome`, format 3). An output is one
//! level: the others would still show the input.

use serde_json::{Map, Value, json};

use super::seen::Seen;

/// What an image has beside its levels.
const BESIDE: [&str; 2] = ["omero", "bioformats2raw.layout"];

/// A level before and after.
pub struct Level<'a> {
    /// Path of the input in the group with the attributes.
    pub path: &'a str,
    /// Path of the output in its group.
    pub member: &'a str,
    /// Per axis of the input.
    pub seen: &'a [Seen],
    /// Axes of the output.
    pub rank: usize,
    /// Of the output.
    pub zarr_format: u8,
}

/// Fits the attributes of a group to the one level that the output has; where that can't be said they go, with the reason.
pub fn fit(attributes: &mut Map<String, Value>, level: &Level<'_>) -> Result<(), String> {
    let mut image = match attributes.shift_remove("ome") {
        Some(Value::Object(ome)) => ome,
        _ => Map::new(),
    };
    let own = ["multiscales"].iter().chain(&BESIDE);
    image.extend(own.filter_map(|name| attributes.shift_remove_entry(*name)));
    let Some(multiscales) = image.shift_remove("multiscales") else {
        // Something else of OME, such as a plate.
        return Ok(());
    };
    let dropped = |reason: String| format!("multiscales of the group are not carried: {reason}");
    let mut fitted = one_level(&multiscales, level).map_err(dropped)?;
    if channel(&fitted.axes).is_some_and(|axis| !level.seen[axis].is_same()) {
        image.shift_remove("omero");
    }
    if level.zarr_format == 2 {
        fitted.multiscale.insert("version".to_owned(), json!("0.4"));
        image.shift_remove("version");
        image.insert("multiscales".to_owned(), json!([fitted.multiscale]));
        attributes.extend(image);
    } else {
        fitted.multiscale.shift_remove("version");
        image.insert("version".to_owned(), json!("0.5"));
        image.insert("multiscales".to_owned(), json!([fitted.multiscale]));
        attributes.insert("ome".to_owned(), Value::Object(image));
    }
    Ok(())
}

struct Fitted {
    multiscale: Map<String, Value>,
    /// Those of the input.
    axes: Vec<Value>,
}

/// The axis of the channels.
fn channel(axes: &[Value]) -> Option<usize> {
    axes.iter().position(|axis| axis["type"] == "channel")
}

fn one_level(multiscales: &Value, level: &Level<'_>) -> Result<Fitted, String> {
    let found = multiscales.as_array().into_iter().flatten().filter_map(Value::as_object).find_map(|multiscale| {
        let datasets = multiscale.get("datasets")?.as_array()?;
        Some((multiscale, datasets.iter().find(|dataset| dataset["path"] == level.path)?))
    });
    let (multiscale, dataset) = found.ok_or_else(|| format!("none of their levels is {}", level.path))?;
    if level.member != level.path {
        return Err(format!("the output is called {}, not {}", level.member, level.path));
    }
    let axes = multiscale.get("axes").and_then(Value::as_array).filter(|axes| axes.len() == level.seen.len());
    let axes = axes.ok_or("they do not name the axes of the array")?;
    let order = order(level)?;
    let pick = |list: &[Value]| -> Vec<Value> { order.iter().map(|&axis| list[axis].clone()).collect() };
    let mut fitted = multiscale.clone();
    fitted.insert("axes".to_owned(), json!(pick(axes)));
    let mut dataset = dataset.clone();
    if order.len() < axes.len() || level.seen.iter().any(|seen| !seen.is_same()) {
        let transformed = transformed(&dataset["coordinateTransformations"], level, &order)?;
        dataset["coordinateTransformations"] = transformed;
        if let Some(all) = fitted.get_mut("coordinateTransformations") {
            let kept: Vec<Value> = lists(all, axes.len())?
                .into_iter()
                .map(|(kind, numbers)| {
                    let numbers: Vec<f64> = order.iter().map(|&axis| numbers[axis]).collect();
                    json!({"type": kind, kind: numbers})
                })
                .collect();
            *all = json!(kept);
        }
    }
    fitted.insert("datasets".to_owned(), json!([dataset]));
    Ok(Fitted { multiscale: fitted, axes: axes.clone() })
}

/// The input's axis behind each of the output's.
fn order(level: &Level<'_>) -> Result<Vec<usize>, String> {
    let at = |axis: usize| level.seen.iter().position(|s| matches!(s, Seen::Evenly { axis: a, .. } if *a == axis));
    let order: Option<Vec<usize>> = (0..level.rank).map(at).collect();
    let order = order.ok_or("an axis of the output is none of the image, or has uneven steps")?;
    if order.len() < 2 {
        return Err("an image has two axes or more".to_owned());
    }
    Ok(order)
}

/// Scales and translations, a number for each axis.
fn lists(transformations: &Value, rank: usize) -> Result<Vec<(&'static str, Vec<f64>)>, String> {
    let one = |transformation: &Value| {
        let kind = ["scale", "translation"].into_iter().find(|kind| transformation["type"] == *kind)?;
        let numbers: Vec<f64> = transformation[kind].as_array()?.iter().map(Value::as_f64).collect::<Option<_>>()?;
        (numbers.len() == rank).then_some((kind, numbers))
    };
    let list = transformations.as_array().map_or(&[][..], Vec::as_slice);
    list.iter().map(one).collect::<Option<_>>().ok_or_else(|| "their transformations are not scales and translations".to_owned())
}

/// The transformations of a level: position = translation + scale * index, with the indices that are left.
fn transformed(transformations: &Value, level: &Level<'_>, order: &[usize]) -> Result<Value, String> {
    let rank = level.seen.len();
    let (mut scale, mut translation, mut is_moved) = (vec![1.0; rank], vec![0.0; rank], false);
    for (kind, numbers) in lists(transformations, rank)? {
        if kind == "scale" {
            scale = numbers;
        } else {
            (translation, is_moved) = (numbers, true);
        }
    }
    let (mut scales, mut translations) = (Vec::new(), Vec::new());
    for &axis in order {
        let Seen::Evenly { first, step, .. } = level.seen[axis] else { continue };
        scales.push(scale[axis] * step);
        translations.push(translation[axis] + scale[axis] * first);
        is_moved |= first != 0.0;
    }
    let mut made = vec![json!({"type": "scale", "scale": scales})];
    made.extend(is_moved.then(|| json!({"type": "translation", "translation": translations})));
    Ok(json!(made))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group() -> Map<String, Value> {
        let axes: Vec<Value> =
            [("c", "channel"), ("y", "space"), ("x", "space")].map(|(n, t)| json!({"name": n, "type": t})).into();
        let level = |path: &str, scale: f64| json!({"path": path, "coordinateTransformations": [{"type": "scale", "scale": [1.0, scale, scale]}]});
        let multiscale = json!({"axes": axes, "datasets": [level("0", 0.5), level("1", 1.0)], "version": "0.4", "name": "n"});
        json!({"multiscales": [multiscale], "omero": {"channels": [1, 2]}, "other": 1}).as_object().unwrap().clone()
    }

    fn same(axis: usize) -> Seen {
        Seen::evenly(axis, (0, 1), 1)
    }

    fn fitted(seen: &[Seen], rank: usize, zarr_format: u8) -> Result<Map<String, Value>, (Map<String, Value>, String)> {
        let mut attributes = group();
        let result = fit(&mut attributes, &Level { path: "0", member: "0", seen, rank, zarr_format });
        result.map(|()| attributes.clone()).map_err(|reason| (attributes, reason))
    }

    #[test]
    fn one_level_is_left() {
        let mut want = group();
        want["multiscales"][0]["datasets"].as_array_mut().unwrap().truncate(1);
        let found = fitted(&[same(0), same(1), same(2)], 3, 2).unwrap();
        assert_eq!(Value::from(found), Value::from(want));
        let found = fitted(&[same(0), same(1), same(2)], 3, 3).unwrap();
        assert_eq!(found["ome"]["version"], "0.5");
        assert_eq!(found["ome"]["multiscales"][0].get("version"), None);
        assert_eq!((&found["ome"]["omero"]["channels"], &found["other"]), (&json!([1, 2]), &json!(1)));
    }

    #[test]
    fn positions_follow_the_cut() {
        // Channel 1 of [:, 10::2, ::-1], cells of 3 along x.
        let seen = [Seen::Gone, Seen::evenly(0, (10, 2), 1), Seen::evenly(1, (99, -1), 3)];
        let found = fitted(&seen, 2, 2).unwrap();
        let multiscale = &found["multiscales"][0];
        assert_eq!(multiscale["axes"].as_array().unwrap().len(), 2);
        let want = json!([{"type": "scale", "scale": [1.0, -1.5]}, {"type": "translation", "translation": [5.0, 49.0]}]);
        assert_eq!(multiscale["datasets"][0]["coordinateTransformations"], want);
        assert_eq!(found.get("omero"), None);
    }

    #[test]
    fn what_is_no_image_any_more() {
        for (seen, rank, word) in [
            (vec![Seen::Gone, Seen::Gone, same(0)], 1, "two axes"),
            (vec![same(0), same(1), same(2)], 4, "none of the image"),
            (vec![same(0), Seen::Unevenly { axis: 1 }, same(2)], 3, "uneven"),
        ] {
            let (attributes, reason) = fitted(&seen, rank, 2).unwrap_err();
            assert!(reason.contains(word), "{reason}");
            assert_eq!(attributes.keys().collect::<Vec<_>>(), ["other"]);
        }
    }
}
