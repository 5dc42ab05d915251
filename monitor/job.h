// A redistillation as a Kubernetes Job: applied twice it is one, since its name follows from the idempotency key.
#pragma once

#include <string>
#include <vector>

namespace specdec::monitor {

// batch/v1 as JSON, which kubectl apply takes. Exit code 75 (try again) does not count against backoffLimit; any other
// but 0 ends it.
std::string job_manifest(const std::string& key, const std::string& image, const std::vector<std::string>& command);

}  // namespace specdec::monitor
