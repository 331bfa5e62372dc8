//! The small controllers that plain YAML needs: Deployment, Job, DaemonSet and relatives.
