#pragma once

#include <optional>
#include <string>
#include <vector>

#include <cli/doctor/facts.h>
#include <cli/doctor/findings.h>
#include <cli/doctor/torch_facts.h>

namespace stormo::cli {

/// What `stormo doctor` says of one host.
struct HostReport {
  HostFacts facts;
  std::optional<TorchFacts> torch;
  std::vector<Finding> found;
};

/// Of this host. Measures for a quarter of a second.
HostReport report_host();

/// One JSON object each.
std::string to_json(const Finding& finding);
std::string to_json(const HostReport& report);

}  // namespace stormo::cli
