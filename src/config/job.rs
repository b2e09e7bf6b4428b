//! A job file's tables as a [`super::JobSpec`].
