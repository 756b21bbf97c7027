//! A binary heap with the exact layout of Python's `heapq`, over a comparison that may fail.
//!
//! `/queue` shows the heap's array as it is, so the layout is part of the behaviour. So is what a failed
//! comparison leaves behind: a pushed item stays where it got to, a popped one is gone.

/// Adds an item. It is in the heap even if the comparison failed.
pub(super) fn push<T, E>(
    heap: &mut Vec<T>,
    item: T,
    less: &impl Fn(&T, &T) -> Result<bool, E>,
) -> Result<(), E> {
    heap.push(item);
    let last = heap.len() - 1;
    rise(heap, 0, last, less)
}

/// Takes the smallest item. If the comparison failed, that item is lost.
pub(super) fn pop<T, E>(
    heap: &mut Vec<T>,
    less: &impl Fn(&T, &T) -> Result<bool, E>,
) -> Result<Option<T>, E> {
    let Some(last) = heap.pop() else {
        return Ok(None);
    };
    if heap.is_empty() {
        return Ok(Some(last));
    }
    let smallest = std::mem::replace(&mut heap[0], last);
    sink(heap, 0, less)?;
    Ok(Some(smallest))
}

/// Makes any list a heap.
pub(super) fn heapify<T, E>(heap: &mut [T], less: &impl Fn(&T, &T) -> Result<bool, E>) -> Result<(), E> {
    for start in (0..heap.len() / 2).rev() {
        sink(heap, start, less)?;
    }
    Ok(())
}

/// Moves the item at `at` towards `top` as long as it is smaller than what is above it.
fn rise<T, E>(
    heap: &mut [T],
    top: usize,
    mut at: usize,
    less: &impl Fn(&T, &T) -> Result<bool, E>,
) -> Result<(), E> {
    while at > top {
        let above = (at - 1) / 2;
        if !less(&heap[at], &heap[above])? {
            break;
        }
        heap.swap(at, above);
        at = above;
    }
    Ok(())
}

/// Moves the item at `top` down to a leaf along the smaller children, then up to its place.
fn sink<T, E>(heap: &mut [T], top: usize, less: &impl Fn(&T, &T) -> Result<bool, E>) -> Result<(), E> {
    let mut at = top;
    while at < heap.len() / 2 {
        let left = 2 * at + 1;
        let right = left + 1;
        let child = if right < heap.len() && !less(&heap[left], &heap[right])? { right } else { left };
        heap.swap(at, child);
        at = child;
    }
    rise(heap, top, at, less)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn less(left: &i32, right: &i32) -> Result<bool, ()> {
        Ok(left < right)
    }

    #[test]
    fn the_layout_is_pythons() {
        let mut heap = Vec::new();
        for number in [5, 3, 8, 1, 9, 2, 7] {
            push(&mut heap, number, &less).unwrap();
        }
        // What heapq.heappush leaves in its list for the same numbers, and after one heappop.
        assert_eq!(heap, [1, 3, 2, 5, 9, 8, 7]);
        assert_eq!(pop(&mut heap, &less), Ok(Some(1)));
        assert_eq!(heap, [2, 3, 7, 5, 9, 8]);
        let mut list = [9, 8, 7, 6, 5, 4, 3, 2, 1];
        heapify(&mut list, &less).unwrap();
        assert_eq!(list, [1, 2, 3, 6, 5, 4, 7, 8, 9]);
    }

    #[test]
    fn a_failed_comparison_keeps_what_was_pushed_and_loses_what_was_popped() {
        let equal_fails = |left: &i32, right: &i32| if left == right { Err(()) } else { Ok(left < right) };
        let mut heap = vec![50];
        for _ in 0..4 {
            assert_eq!(push(&mut heap, 50, &equal_fails), Err(()));
        }
        assert_eq!(heap.len(), 5);
        assert_eq!(pop(&mut heap, &equal_fails), Err(()));
        assert_eq!(heap.len(), 4);
    }

    proptest! {
        #[test]
        fn pops_come_in_order(mut numbers in prop::collection::vec(any::<i32>(), 0..60)) {
            let mut heap = Vec::new();
            for number in &numbers {
                push(&mut heap, *number, &less).unwrap();
            }
            numbers.sort_unstable();
            for number in numbers {
                prop_assert_eq!(pop(&mut heap, &less), Ok(Some(number)));
            }
        }
    }
}
