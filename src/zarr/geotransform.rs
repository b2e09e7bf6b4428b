//! `GeoTransform` of a grid mapping (GDAL; the GeoZarr draft): six numbers that lead from pixels to coordinates,
//! `x = g0 + column * g1 + row * g2` and `y = g3 + column * g4 + row * g5`, with column and row counted from the corner of the first
//! pixel.

use serde_json::{Map, Value};

use super::seen::Seen;

const NAME: &str = "GeoTransform";

/// Names of the two axes in use, as CF's `axis` and `standard_name` are, and as people write them.
const X: [&str; 9] = ["x", "lon", "longitude", "easting", "projection_x_coordinate", "grid_longitude", "range", "column", "col"];
const Y: [&str; 9] = ["y", "lat", "latitude", "northing", "projection_y_coordinate", "grid_latitude", "azimuth", "row", "line"];

/// Which axes columns and rows run along, by the names that each has.
pub fn axes(names: &[Vec<&str>]) -> Option<[usize; 2]> {
    let along = |known: &[&str]| {
        let is_known = |name: &&str| known.contains(&name.to_ascii_lowercase().as_str());
        names.iter().position(|own| own.iter().any(is_known))
    };
    Some([along(&X)?, along(&Y)?])
}

/// Fits the transform in these attributes to pixels of which columns and rows are seen so; `None`: it is not known. What can't be
/// said any more goes, with the reason.
pub fn fit(attributes: &mut Map<String, Value>, pixels: Option<[Seen; 2]>) -> Result<(), String> {
    if pixels.is_some_and(|pixels| pixels.iter().all(Seen::is_same)) {
        return Ok(());
    }
    let Some(old) = attributes.shift_remove(NAME) else { return Ok(()) };
    let numbers = |text: &str| text.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>();
    let Some([g0, g1, g2, g3, g4, g5]) = old.as_str().and_then(numbers).and_then(|n| <[f64; 6]>::try_from(n).ok()) else {
        return Err("it is not six numbers".to_owned());
    };
    let Some([Seen::Evenly { first: column, step: columns, .. }, Seen::Evenly { first: row, step: rows, .. }]) = pixels else {
        return Err("the pixels have no even distance, or it is not known which axes are x and y".to_owned());
    };
    // From the middle of the first pixel back to its corner.
    let (column, row) = (column + 0.5 - columns / 2.0, row + 0.5 - rows / 2.0);
    let new = [g0 + column * g1 + row * g2, g1 * columns, g2 * rows, g3 + column * g4 + row * g5, g4 * columns, g5 * rows];
    // The sum makes a zero of a negative one.
    attributes.insert(NAME.to_owned(), new.map(|number| (number + 0.0).to_string()).join(" ").into());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fitted(text: &str, pixels: Option<[Seen; 2]>) -> (Option<String>, Result<(), String>) {
        let mut attributes = json!({"crs_wkt": "w", "GeoTransform": text}).as_object().unwrap().clone();
        let result = fit(&mut attributes, pixels);
        assert_eq!(attributes["crs_wkt"], "w");
        (attributes.get(NAME).map(|value| value.as_str().unwrap().to_owned()), result)
    }

    #[test]
    fn pixels_keep_their_places() {
        let text = "74.5 0.5 0 75 0 -0.5";
        let new = |x, y| fitted(text, Some([x, y])).0.unwrap();
        let same = Seen::evenly(0, (0, 1), 1);
        assert_eq!(new(same, same), text);
        // Cropped, turned around, every second one, cells of four.
        assert_eq!(new(Seen::evenly(0, (10, 1), 1), same), "79.5 0.5 0 75 0 -0.5");
        assert_eq!(new(same, Seen::evenly(0, (9, -1), 1)), "74.5 0.5 0 70 0 0.5");
        assert_eq!(new(Seen::evenly(0, (0, 2), 1), same), "74.25 1 0 75 0 -0.5");
        assert_eq!(new(Seen::evenly(0, (0, 1), 4), same), "74.5 2 0 75 0 -0.5");
    }

    #[test]
    fn what_is_not_known_goes() {
        let text = "74.5 0.5 0 75 0 -0.5";
        assert!(matches!(fitted(text, None), (None, Err(_))));
        assert!(matches!(fitted("1 2 3", Some([Seen::evenly(0, (1, 1), 1); 2])), (None, Err(_))));
        assert!(matches!(fitted(text, Some([Seen::Gone, Seen::evenly(0, (0, 1), 1)])), (None, Err(_))));
        assert_eq!(axes(&[vec!["time"], vec!["Lat"], vec!["j", "longitude"]]), Some([2, 1]));
        assert_eq!(axes(&[vec!["i"], vec!["x"]]), None);
    }
}
