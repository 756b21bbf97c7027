//! What goes over the wire: types of their own, so that a change inside does not change the API by accident.

mod submit;
mod task;
mod worker;

pub(crate) use submit::{Requires, SubmitTask, name, printable};
pub(crate) use task::{TaskPage, TaskView, absolute};
pub(crate) use worker::{WorkerList, WorkerView, status_of};
