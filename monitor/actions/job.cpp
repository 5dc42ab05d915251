#include "monitor/actions/job.h"

#include "base/json.h"

namespace specdec::monitor {

std::string job_manifest(const std::string& key, const std::string& image, const std::vector<std::string>& command) {
  const std::string name = "specdec-redistil-" + key.substr(0, 16);
  const Json labels = {{"app.kubernetes.io/name", "specdec"}, {"app.kubernetes.io/component", "redistil"}};
  const Json rules = Json::array(
      {{{"action", "Ignore"}, {"onExitCodes", {{"containerName", "specdec"}, {"operator", "In"}, {"values", {75}}}}},
       {{"action", "FailJob"},
        {"onExitCodes", {{"containerName", "specdec"}, {"operator", "NotIn"}, {"values", {0, 74, 75}}}}}});
  const Json container = {{"name", "specdec"}, {"image", image}, {"command", command}};
  const Json job = {{"apiVersion", "batch/v1"},
                    {"kind", "Job"},
                    {"metadata", {{"name", name}, {"labels", labels}, {"annotations", {{"specdec/key", key}}}}},
                    {"spec",
                     {{"backoffLimit", 3},
                      {"podFailurePolicy", {{"rules", rules}}},
                      {"template",
                       {{"metadata", {{"labels", labels}}},
                        {"spec", {{"restartPolicy", "Never"}, {"containers", Json::array({container})}}}}}}}};
  return job.dump(2) + "\n";
}

}  // namespace specdec::monitor
