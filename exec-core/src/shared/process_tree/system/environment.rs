//! The text of an environment.

use memchr::memmem;

/// The value of a variable in `NAME=value` entries that end with NUL bytes.
pub(super) fn find_variable(environ: &[u8], name: &str) -> Option<String> {
    let name = name.as_bytes();
    let at = memmem::find_iter(environ, name).find(|at| {
        (*at == 0 || environ[at - 1] == 0) && environ.get(at + name.len()) == Some(&b'=')
    })?;
    let value = &environ[at + name.len() + 1..];
    let end = memchr::memchr(0, value).unwrap_or(value.len());
    String::from_utf8(value[..end].to_vec()).ok()
}

/// The environment in the answer of macOS to `KERN_PROCARGS2`: the number of arguments, the path of
/// the program, NUL bytes as padding, the arguments, the environment. `None` if it is cut.
///
/// An argument that looks like a variable must not be taken for one. A program whose first argument
/// is empty loses its first variable here: the padding before it has no fixed length.
pub(super) fn after_arguments(answer: &[u8]) -> Option<&[u8]> {
    let (count, mut rest) = answer.split_first_chunk::<4>()?;
    let count = u32::try_from(i32::from_ne_bytes(*count)).ok()?;
    rest = &rest[memchr::memchr(0, rest)?..];
    rest = &rest[rest.iter().position(|byte| *byte != 0)?..];
    for _ in 0..count {
        rest = &rest[memchr::memchr(0, rest)? + 1..];
    }
    Some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(environ: &str, expected: Option<&str>) {
        let found = find_variable(environ.as_bytes(), "TAG");
        assert_eq!(found.as_deref(), expected, "{environ:?}");
    }

    #[test]
    fn the_variable_is_found_by_its_whole_name() {
        check("A=1\0TAG=x\0B=2\0", Some("x"));
        check("TAG=x", Some("x"));
        check("TAG=", Some(""));
        check("XTAG=x\0", None);
        check("TAGX=x\0", None);
        check("A=TAG=x\0", None);
        check("A=TAG=x\0TAG=y\0", Some("y"));
        check("", None);
    }

    #[test]
    fn an_argument_is_not_taken_for_a_variable() {
        let answer = |count: i32, text: &str| [&count.to_ne_bytes(), text.as_bytes()].concat();
        let tag = |answer: &[u8]| find_variable(after_arguments(answer)?, "TAG");
        let text = "/bin/tool\0\0\0\0\0\0\0tool\0TAG=argument\0\0TAG=x\0B=2\0\0";
        assert_eq!(tag(&answer(3, text)).as_deref(), Some("x"));
        assert_eq!(tag(&answer(1, text)).as_deref(), Some("argument"));
        // The environment of a program of Apple is cut off.
        assert_eq!(tag(&answer(1, "/bin/sleep\0\0sleep\0")), None);
        for cut in [
            &b""[..],
            &answer(9, text),
            &answer(-1, text),
            &answer(1, "/bin/tool"),
        ] {
            assert_eq!(after_arguments(cut), None, "{cut:?}");
        }
    }
}
