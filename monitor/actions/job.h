// Describes a redistillation as a Kubernetes Job. The Job's name is derived from the idempotency key, so applying the
// manifest twice starts the Job once.
#pragma once

#include <string>
#include <vector>

namespace specdec::monitor {

// Returns a batch/v1 Job as JSON, which kubectl apply accepts. Exit code 75 (try again) does not count towards
// backoffLimit, 74 does; any other code except 0 ends the Job.
std::string job_manifest(const std::string& key, const std::string& image, const std::vector<std::string>& command);

}  // namespace specdec::monitor
