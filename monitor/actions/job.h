// Describes a redistillation as a Kubernetes Job. The Job's name is derived from the idempotency key, so applying the
// manifest twice starts the Job once.
#pragma once

#include <string>
#include <vector>

namespace specdec::monitor {

// Returns a batch/v1 Job as JSON, which kubectl apply accepts. A container that exits with 75 (try again) is restarted,
// and this does not count towards backoffLimit. A container that exits with 74 is restarted, and this counts. Any other
// exit code except 0 ends the Job.
std::string job_manifest(const std::string& key, const std::string& image, const std::vector<std::string>& command);

}  // namespace specdec::monitor
