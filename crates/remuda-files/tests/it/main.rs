//! One contract, run on a directory and on S3. The S3 server is real enough to check signatures.

mod directory;
mod key;
mod location;
mod s3;
mod s3_faults;
mod s3_server;
mod suite;
