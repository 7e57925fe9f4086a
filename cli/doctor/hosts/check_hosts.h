#pragma once

#include <cli/launch_flags.h>
#include <stormo/base/status.h>

namespace stormo::cli {

/// What `stormo doctor -H` runs on each host: not for people.
inline constexpr const char* kHostReportCommand = "report-host";

/// Asks every host of `flags.hosts`, as the launcher would start ranks there, prints what they say
/// and what is wrong, and returns the exit code.
int check_hosts(const LaunchFlags& flags, bool as_json);

/// On one of these hosts: prints its report and what it has measured to the others, as one JSON
/// object.
Status report_to_others();

}  // namespace stormo::cli
