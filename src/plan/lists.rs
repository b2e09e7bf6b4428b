//! Many short lists in two vectors: what a plan knows of each block or chunk along an axis, which may have a million.

use std::ops::Index;

/// Lists one after the other.
#[derive(Clone, Debug)]
pub struct Lists<T> {
    items: Vec<T>,
    /// Where each list ends.
    ends: Vec<u32>,
}

impl<T> Default for Lists<T> {
    fn default() -> Self {
        Self { items: Vec::new(), ends: Vec::new() }
    }
}

impl<T> Lists<T> {
    /// The items of the list that is being made.
    pub fn open(&mut self) -> &mut [T] {
        let start = self.start(self.ends.len());
        &mut self.items[start..]
    }

    /// Adds to the list that is being made.
    pub fn push(&mut self, item: T) {
        self.items.push(item);
    }

    /// Ends the list that is being made.
    pub fn close(&mut self) {
        self.ends.push(self.items.len() as u32);
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &[T]> {
        (0..self.len()).map(|at| &self[at])
    }

    fn start(&self, at: usize) -> usize {
        if at == 0 { 0 } else { self.ends[at - 1] as usize }
    }

    /// Gives back what growing took too much.
    pub fn shrink(&mut self) {
        self.items.shrink_to_fit();
        self.ends.shrink_to_fit();
    }
}

impl<T: Copy + Default> Lists<T> {
    /// `count` lists from items that say which list they are of; their order is kept.
    pub fn sorted(count: usize, items: impl Iterator<Item = (u32, T)> + Clone) -> Self {
        let mut ends = vec![0u32; count];
        items.clone().for_each(|(list, _)| ends[list as usize] += 1);
        let mut sum = 0;
        for end in &mut ends {
            let len = *end;
            *end = sum;
            sum += len;
        }
        let mut sorted = vec![T::default(); sum as usize];
        for (list, item) in items {
            let at = &mut ends[list as usize];
            sorted[*at as usize] = item;
            *at += 1;
        }
        Self { items: sorted, ends }
    }
}

impl<T> Index<usize> for Lists<T> {
    type Output = [T];

    fn index(&self, at: usize) -> &[T] {
        &self.items[self.start(at)..self.ends[at] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_their_items_in_order() {
        let mut lists = Lists::default();
        lists.push(1);
        lists.push(2);
        lists.close();
        lists.close();
        lists.push(3);
        lists.open()[0] += 1;
        lists.close();
        assert_eq!(lists.iter().map(<[i32]>::to_vec).collect::<Vec<_>>(), [vec![1, 2], vec![], vec![4]]);
        let sorted = Lists::sorted(3, [(2, 'a'), (0, 'b'), (2, 'c')].into_iter());
        assert_eq!((&sorted[0], &sorted[1], &sorted[2]), (&['b'][..], &[][..], &['a', 'c'][..]));
    }
}
