#pragma once

#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/transport/net/socket.h>

namespace stormo::launch {

/// What one process of a cluster with parameter servers does.
struct ClusterTask {
  enum class Role {
    kWorker,     ///< the first one, the chief, also evaluates, saves and reports
    kServer,     ///< holds parameters
    kEvaluator,  ///< evaluates checkpoints as they come
  } role = Role::kWorker;
  int index = 0;  ///< among those of its role; the chief is worker 0
  int workers = 0;
  std::vector<transport::HostPort> servers;  ///< where they listen
  /// Of a worker: workers of the cluster on its host, with itself; by the names of hosts.
  int workers_here = 1;
  int hosts = 1;  ///< with workers or servers, by their names
};

/// Reads the variable TF_CONFIG of TensorFlow: a JSON object with
///   "cluster": {"chief": ["host:port"], "worker": [...], "ps": [...]}   addresses of each role
///   "task": {"type": "worker", "index": 0}                              which of them this is
/// Without a "chief", the first worker is it. An "evaluator" need not be in the cluster. Of
/// addresses other than those of "ps" only the host is used. kInvalidArgument names the field.
Result<ClusterTask> parse_tf_config(std::string_view text);

}  // namespace stormo::launch
