#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/launch/environment.h>
#include <stormo/transport/net/socket.h>

namespace stormo::launch {

/// What one process of a cluster does.
struct ClusterTask {
  enum class Role {
    kWorker,     ///< the first one, the chief, also evaluates, saves and reports
    kServer,     ///< holds parameters
    kEvaluator,  ///< evaluates checkpoints as they come
  } role = Role::kWorker;
  int index = 0;  ///< among those of its role; the chief is worker 0
  int workers = 0;
  std::vector<transport::HostPort> servers;  ///< where they listen; empty: the workers form a group
  std::vector<transport::HostPort> worker_addresses;  ///< the chief is the first one
  std::string cluster;  ///< the whole of it, the same text for each of its processes
  /// Of a worker: workers of the cluster on its host, with itself; by the names of hosts.
  int workers_here = 1;
  int hosts = 1;  ///< with workers or servers, by their names
};

/// Reads the variable TF_CONFIG of TensorFlow: a JSON object with
///   "cluster": {"chief": ["host:port"], "worker": [...], "ps": [...]}   addresses of each role
///   "task": {"type": "worker", "index": 0}                              which of them this is
/// Without a "chief", the first worker is it. Without "ps", the workers form a group (TensorFlow's
/// MultiWorkerMirroredStrategy). An "evaluator" need not be in the cluster. Of addresses other than
/// those of "ps" and of the first worker only the host is used. Other ways to write the same are
/// taken: "master" for the chief, an index as text, addresses with "grpc://" or as an object
/// {"0": "host:port"}. kInvalidArgument lists everything that is wrong, with the field.
Result<ClusterTask> parse_tf_config(std::string_view text);

/// The same from the environment; empty if TF_CONFIG is not set, or says nothing ("", "{}").
std::optional<Result<ClusterTask>> task_of_environment(const EnvironmentReader& read);

}  // namespace stormo::launch
