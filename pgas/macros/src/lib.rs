//! The attribute `#[bellwether::test]`.

use proc_macro::TokenStream;
use quote::{format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Error, Expr, ExprArray, ExprLit, Ident, ItemFn, Lit, LitStr, Result, Token, parse_macro_input};

/// Runs a function as the ranks of a job, under plain `cargo test`: one test for each number of ranks, named
/// `function::ranks_3`.
///
/// The function takes `&World` and returns nothing or a `Result`. A rank that panics or returns an error fails the test.
///
/// | argument | meaning | default |
/// | --- | --- | --- |
/// | `ranks = [1, 2, 3, 7]` | numbers of ranks, each from 1 | `[1, 2, 3]` |
/// | `launch = "threads"` | ranks are threads of the test; `"processes"`: the test starts itself again, once a rank | threads |
/// | `deadline = "10s"` | a test that takes longer fails, and tells where each rank waits; `ms`, `s` or `min` | 60s |
///
/// `#[ignore]` and `#[should_panic]` apply to each of the tests.
///
/// ```ignore
/// #[bellwether::test(ranks = [1, 2, 7], deadline = "10s")]
/// fn everyone_counts(world: &bellwether::World) -> bellwether::Result<()> {
///     let team = bellwether::Team::world(world)?;
///     let mut ranks = [1];
///     team.allreduce(&mut ranks, bellwether::Sum)?;
///     assert_eq!(ranks[0], world.size());
///     Ok(())
/// }
/// ```
#[proc_macro_attribute]
pub fn test(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let arguments = parse_macro_input!(arguments as Arguments);
    let function = parse_macro_input!(item as ItemFn);
    expand(arguments, function).unwrap_or_else(|error| error.into_compile_error().into())
}

struct Arguments {
    ranks: Vec<usize>,
    processes: bool,
    deadline_ms: u64,
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> Result<Arguments> {
        let mut arguments = Arguments { ranks: vec![1, 2, 3], processes: false, deadline_ms: 60_000 };
        for Argument { name, value } in Punctuated::<Argument, Token![,]>::parse_terminated(input)? {
            match name.to_string().as_str() {
                "ranks" => arguments.ranks = ranks(&value)?,
                "launch" => {
                    let launch = text(&value)?;
                    arguments.processes = match launch.value().as_str() {
                        "threads" => false,
                        "processes" => true,
                        _ => return Err(Error::new(launch.span(), "expected \"threads\" or \"processes\"")),
                    };
                }
                "deadline" => {
                    let limit = text(&value)?;
                    arguments.deadline_ms = milliseconds(&limit.value()).ok_or_else(|| {
                        Error::new(limit.span(), "expected a time such as \"500ms\", \"10s\" or \"2min\"")
                    })?;
                }
                other => {
                    let why = format!("unknown argument `{other}`: expected ranks, launch or deadline");
                    return Err(Error::new(name.span(), why));
                }
            }
        }
        Ok(arguments)
    }
}

struct Argument {
    name: Ident,
    value: Expr,
}

impl Parse for Argument {
    fn parse(input: ParseStream<'_>) -> Result<Argument> {
        let name = input.parse()?;
        input.parse::<Token![=]>()?;
        Ok(Argument { name, value: input.parse()? })
    }
}

fn ranks(value: &Expr) -> Result<Vec<usize>> {
    const EXPECTED: &str = "expected a list of numbers of ranks, such as [1, 2, 3, 7]";
    let Expr::Array(ExprArray { elems, .. }) = value else { return Err(Error::new_spanned(value, EXPECTED)) };
    let mut all: Vec<usize> = Vec::new();
    for element in elems {
        let Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) = element else {
            return Err(Error::new_spanned(element, EXPECTED));
        };
        let ranks = number.base10_parse()?;
        if ranks == 0 {
            return Err(Error::new_spanned(element, "a job has at least 1 rank"));
        }
        if all.contains(&ranks) {
            return Err(Error::new_spanned(element, format!("{ranks} ranks are on the list already")));
        }
        all.push(ranks);
    }
    if all.is_empty() {
        return Err(Error::new_spanned(value, EXPECTED));
    }
    Ok(all)
}

fn text(value: &Expr) -> Result<LitStr> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Ok(text.clone()),
        other => Err(Error::new_spanned(other, "expected a text in quotes")),
    }
}

fn milliseconds(text: &str) -> Option<u64> {
    let unit = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..unit].parse().ok().filter(|number| *number > 0)?;
    let factor = match text[unit..].trim() {
        "ms" => 1,
        "s" => 1000,
        "min" => 60_000,
        _ => return None,
    };
    number.checked_mul(factor)
}

fn expand(arguments: Arguments, mut function: ItemFn) -> Result<TokenStream> {
    let signature = &function.sig;
    if signature.asyncness.is_some() || !signature.generics.params.is_empty() || signature.inputs.len() != 1 {
        let why = "a test takes one argument, `world: &World`, and is neither generic nor async";
        return Err(Error::new_spanned(signature, why));
    }
    let name = signature.ident.clone();
    let is_of_tests =
        |attribute: &syn::Attribute| attribute.path().is_ident("ignore") || attribute.path().is_ident("should_panic");
    if let Some(test) = function.attrs.iter().find(|attribute| attribute.path().is_ident("test")) {
        return Err(Error::new_spanned(test, "this attribute makes the tests: leave out `#[test]`"));
    }
    let (of_tests, others): (Vec<_>, Vec<_>) = function.attrs.drain(..).partition(is_of_tests);
    function.attrs = others;
    let Arguments { ranks, processes, deadline_ms } = arguments;
    let tests = ranks.into_iter().map(|ranks| {
        let test = format_ident!("ranks_{ranks}");
        quote! {
            #[test]
            #(#of_tests)*
            fn #test() {
                ::bellwether::testing::run(
                    ::bellwether::testing::Test {
                        name: concat!(module_path!(), "::", stringify!(#test)),
                        ranks: #ranks,
                        processes: #processes,
                        deadline: ::core::time::Duration::from_millis(#deadline_ms),
                    },
                    |world| ::bellwether::testing::Outcome::told(super::#name(world)),
                );
            }
        }
    });
    Ok(quote! {
        #[cfg(test)]
        #function

        #[cfg(test)]
        mod #name {
            #(#tests)*
        }
    }
    .into())
}
