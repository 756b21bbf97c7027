//! Task functions: what they take, what they return, and how they are called.

use std::future::Future;
use std::pin::Pin;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::context::TaskContext;
use super::error::TaskError;
use super::fit::{Expected, probe};
use crate::delivery::{Delivery, Input};
use crate::error::Result;
use crate::task_def::Type;
use crate::value::Value;

/// An input of a task function: anything that serde can read, or a [`Value`] as it came.
pub trait FromInput: Sized {
    /// From a value.
    fn from_value(value: Value) -> Result<Self>;

    /// Which types it takes.
    #[doc(hidden)]
    fn expected() -> Expected;
}

impl<T: DeserializeOwned> FromInput for T {
    fn from_value(value: Value) -> Result<Self> {
        value.to()
    }

    fn expected() -> Expected {
        probe::<T>()
    }
}

impl FromInput for Value {
    fn from_value(value: Value) -> Result<Self> {
        Ok(value)
    }

    fn expected() -> Expected {
        Expected::Anything
    }
}

/// What a task function returns: anything that serde can write, or a [`Value`] as it is to be sent.
pub trait IntoOutput {
    /// As a value, of the type that the TaskDef returns if it says so.
    fn into_value(self, of: Option<Type>) -> Result<Value>;
}

impl<T: Serialize> IntoOutput for T {
    fn into_value(self, of: Option<Type>) -> Result<Value> {
        match of {
            Some(of) => Value::from_serialize(&self, of),
            None => Value::infer(&self),
        }
    }
}

impl IntoOutput for Value {
    fn into_value(self, _of: Option<Type>) -> Result<Value> {
        Ok(self)
    }
}

/// How a call of a task function ended.
#[derive(Debug)]
pub enum Called {
    /// With an output.
    Output(Value),
    /// With an output that cannot be sent.
    BadOutput(String),
    /// With an error.
    Failed(TaskError),
}

/// A call of a task function under way.
pub type Call<'a> = Pin<Box<dyn Future<Output = Called> + Send + 'a>>;

/// A task function: an async function or closure that takes a [`TaskContext`], then the inputs of the task by their place,
/// and returns a `Result<T, TaskError>`. `A` is the tuple of its inputs, of eight at most.
pub trait TaskFn<A>: Send + Sync + 'static {
    /// The types of its inputs.
    #[doc(hidden)]
    fn inputs() -> Vec<Expected>;

    /// Runs it for a task.
    #[doc(hidden)]
    fn call<'a>(&'a self, context: TaskContext, delivery: &'a Delivery, returns: Option<Type>) -> Call<'a>;
}

/// A task function whose inputs are forgotten.
pub(super) trait AnyFn: Send + Sync {
    fn call<'a>(&'a self, context: TaskContext, delivery: &'a Delivery, returns: Option<Type>) -> Call<'a>;
}

pub(super) struct Erased<F, A> {
    function: F,
    inputs: std::marker::PhantomData<fn() -> A>,
}

impl<F, A> Erased<F, A> {
    pub(super) fn new(function: F) -> Self {
        Self { function, inputs: std::marker::PhantomData }
    }
}

impl<A: 'static, F: TaskFn<A>> AnyFn for Erased<F, A> {
    fn call<'a>(&'a self, context: TaskContext, delivery: &'a Delivery, returns: Option<Type>) -> Call<'a> {
        self.function.call(context, delivery, returns)
    }
}

/// The n-th input. What is wrong with a masked one is not told in detail: the detail may have the value in it.
fn input<T: FromInput>(delivery: &Delivery, n: usize) -> Result<T, TaskError> {
    let Input { name, value, masked } =
        delivery.input(n).map_err(|error| TaskError::BadInput(error.to_string()))?;
    T::from_value(value).map_err(|error| {
        let reason =
            if masked { "it does not fit (the value is masked)".to_owned() } else { error.to_string() };
        TaskError::BadInput(format!("input {n} `{name}`: {reason}"))
    })
}

fn finish<T: IntoOutput>(result: Result<T, TaskError>, returns: Option<Type>) -> Called {
    match result.map(|output| output.into_value(returns)) {
        Ok(Ok(value)) => Called::Output(value),
        Ok(Err(error)) => Called::BadOutput(error.to_string()),
        Err(error) => Called::Failed(error),
    }
}

macro_rules! task_fn {
    ($($input:ident $n:literal),*) => {
        impl<Func, Fut, Out, $($input),*> TaskFn<($($input,)*)> for Func
        where
            Func: Fn(TaskContext, $($input),*) -> Fut + Send + Sync + 'static,
            Fut: Future<Output = Result<Out, TaskError>> + Send,
            Out: IntoOutput + Send,
            $($input: FromInput + Send,)*
        {
            fn inputs() -> Vec<Expected> {
                vec![$($input::expected()),*]
            }

            #[allow(non_snake_case, unused_variables)]
            fn call<'a>(
                &'a self,
                context: TaskContext,
                delivery: &'a Delivery,
                returns: Option<Type>,
            ) -> Call<'a> {
                Box::pin(async move {
                    $(
                        let $input = match input::<$input>(delivery, $n) {
                            Ok(input) => input,
                            Err(error) => return Called::Failed(error),
                        };
                    )*
                    finish(self(context, $($input),*).await, returns)
                })
            }
        }
    };
}

task_fn!();
task_fn!(A 0);
task_fn!(A 0, B 1);
task_fn!(A 0, B 1, C 2);
task_fn!(A 0, B 1, C 2, D 3);
task_fn!(A 0, B 1, C 2, D 3, E 4);
task_fn!(A 0, B 1, C 2, D 3, E 4, F 5);
task_fn!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
task_fn!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
