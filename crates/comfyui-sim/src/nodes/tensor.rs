//! Tensors as PyTorch prints them: error messages carry whole ones in `current_inputs`.

/// Tensors with more elements are shown with their edges only.
const WHOLE: usize = 1000;
/// How many elements remain at each edge.
const EDGE: usize = 3;
const LINE_WIDTH: usize = 80;

/// The text of `str(tensor)` for a tensor of 32 bit floats.
pub(super) fn text(shape: &[usize], at: &dyn Fn(usize) -> f32) -> String {
    if shape.contains(&0) {
        let sizes: Vec<String> = shape.iter().map(usize::to_string).collect();
        return format!("tensor([], size=({}))", sizes.join(", "));
    }
    let cut = shape.iter().product::<usize>() > WHOLE;
    let mut shown = Vec::new();
    collect(shape, 0, cut, at, &mut shown);
    let style = Style::of(&shown);
    format!("tensor({})", write(shape, 0, "tensor(".len(), cut, at, &style))
}

/// The indices shown of a dimension, with a gap if some are left out.
fn indices(size: usize, cut: bool) -> Vec<Option<usize>> {
    if cut && size > 2 * EDGE {
        let head = (0..EDGE).map(Some);
        head.chain([None]).chain((size - EDGE..size).map(Some)).collect()
    } else {
        (0..size).map(Some).collect()
    }
}

fn collect(shape: &[usize], start: usize, cut: bool, at: &dyn Fn(usize) -> f32, out: &mut Vec<f32>) {
    let Some((size, inner)) = shape.split_first() else {
        out.push(at(start));
        return;
    };
    let stride: usize = inner.iter().product();
    for index in indices(*size, cut).into_iter().flatten() {
        collect(inner, start + index * stride, cut, at, out);
    }
}

fn write(
    shape: &[usize],
    start: usize,
    indent: usize,
    cut: bool,
    at: &dyn Fn(usize) -> f32,
    style: &Style,
) -> String {
    let Some((size, inner)) = shape.split_first() else {
        return style.number(at(start));
    };
    let stride: usize = inner.iter().product();
    let parts: Vec<String> = indices(*size, cut)
        .into_iter()
        .map(|index| match index {
            Some(index) => write(inner, start + index * stride, indent + 1, cut, at, style),
            None if inner.is_empty() => " ...".to_owned(),
            None => "...".to_owned(),
        })
        .collect();
    let line_break = format!("{}{}", "\n".repeat(inner.len().max(1)), " ".repeat(indent + 1));
    if inner.is_empty() {
        let per_line = (LINE_WIDTH.saturating_sub(indent) / (style.width + 2)).max(1);
        let lines: Vec<String> = parts.chunks(per_line).map(|line| line.join(", ")).collect();
        format!("[{}]", lines.join(&format!(",{line_break}")))
    } else {
        format!("[{}]", parts.join(&format!(",{line_break}")))
    }
}

/// One notation for all numbers of a tensor.
struct Style {
    notation: Notation,
    width: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Notation {
    /// `3.`
    Whole,
    /// `0.0039`
    Fixed,
    /// `3.9216e-03`
    Scientific,
}

impl Style {
    fn of(values: &[f32]) -> Style {
        let sizes =
            || values.iter().map(|value| f64::from(value.abs())).filter(|v| v.is_finite() && *v != 0.0);
        let largest = sizes().fold(0.0, f64::max);
        let smallest = sizes().fold(f64::INFINITY, f64::min);
        let wide = largest > 0.0 && (largest / smallest > 1000.0 || largest > 1e8);
        let notation = if values.iter().all(|value| !value.is_finite() || value.fract() == 0.0) {
            if wide { Notation::Scientific } else { Notation::Whole }
        } else if wide || smallest < 1e-4 {
            Notation::Scientific
        } else {
            Notation::Fixed
        };
        let mut style = Style { notation, width: 1 };
        // Zeros do not count here, so a tensor of nothing else is set more closely.
        let counted = values.iter().filter(|value| value.is_finite() && **value != 0.0);
        style.width = counted.map(|value| style.plain(*value).len()).max().unwrap_or(1);
        style
    }

    fn plain(&self, value: f32) -> String {
        let value = f64::from(value);
        if !value.is_finite() {
            return crate::json::repr_float(value);
        }
        match self.notation {
            Notation::Whole => format!("{value:.0}."),
            Notation::Fixed => format!("{value:.4}"),
            Notation::Scientific => {
                let text = format!("{value:.4e}");
                let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                let (sign, digits) = match exponent.strip_prefix('-') {
                    Some(digits) => ('-', digits),
                    None => ('+', exponent),
                };
                format!("{mantissa}e{sign}{digits:0>2}")
            }
        }
    }

    fn number(&self, value: f32) -> String {
        format!("{:>width$}", self.plain(value), width = self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_tensors_are_printed_whole() {
        let pixels = [0.0, 0.0, 1.0 / 255.0];
        let printed = text(&[1, 2, 2, 3], &|at| pixels[at % 3]);
        assert_eq!(
            printed,
            "tensor([[[[0.0000, 0.0000, 0.0039],\n          [0.0000, 0.0000, 0.0039]],\n\n         \
             [[0.0000, 0.0000, 0.0039],\n          [0.0000, 0.0000, 0.0039]]]])"
        );
        assert_eq!(text(&[3], &|at| at as f32), "tensor([0., 1., 2.])");
        assert_eq!(text(&[2], &|at| [1.0, 5000.5][at]), "tensor([1.0000e+00, 5.0005e+03])");
        assert_eq!(text(&[0], &|_| 0.0), "tensor([], size=(0))");
        assert_eq!(text(&[1, 1, 44], &|_| 0.0).lines().next().unwrap().matches("0.").count(), 23);
    }

    #[test]
    fn large_tensors_show_their_edges() {
        let printed = text(&[1, 40, 40], &|_| 0.5);
        assert!(printed.starts_with("tensor([[[0.5000, 0.5000, 0.5000,  ..., 0.5000, 0.5000, 0.5000],\n"));
        assert!(printed.contains("],\n         ...,\n         ["), "{printed}");
        assert_eq!(printed.matches('[').count(), 8);
    }
}
