#include "cli/gpu_findings.h"

#include <map>

#include "base/error.h"
#include "base/format.h"

namespace specdec::cli {

namespace {

// Returns the JSON that the engine printed, or null if its output is not JSON.
Json parsed(const std::string& output) try { return parse_json(output, "specdec-engine"); } catch (const Error&) {
  return nullptr;
}

Finding device_finding(const std::string& device, const Json& gpu) {
  const auto gibibytes = [&](const char* key) { return format("%.1f", gpu.at(key).get<double>() / (1ull << 30)); };
  return {"gpu", true,
          device + " " + gpu.at("name").get<std::string>() + ", compute capability " +
              gpu.at("compute_capability").get<std::string>() + ", " + gibibytes("free_bytes") + " of " +
              gibibytes("total_bytes") + " GiB free, copies " +
              format("%.0f GB/s", gpu.at("copy_bytes_per_second").get<double>() / 1e9) + " (read and written)"};
}

std::vector<Finding> kernel_findings(const std::string& device, const Json& gpu) {
  std::map<std::string, std::vector<std::string>> faults;  // kernel → its faults
  for (const Json& fault : gpu.at("faults"))
    faults[fault.at("kernel")].push_back(fault.at("shape").get<std::string>() + ": " +
                                         fault.at("what").get<std::string>());
  if (faults.empty())
    return {{"kernels", true,
             device + " passes " + std::to_string(gpu.at("cases").get<int64_t>()) + " tests of its kernels in " +
                 format("%.1f s", gpu.at("seconds").get<double>())}};
  std::vector<Finding> out;
  for (const auto& [kernel, of_kernel] : faults) {
    std::string text = device + " computes wrong results: " + kernel + ", " + of_kernel.front();
    if (of_kernel.size() > 1) text += "; " + std::to_string(of_kernel.size()) + " of its tests fail";
    out.push_back({"kernels", false, text});
  }
  return out;
}

}  // namespace

std::vector<Finding> gpu_findings(const Json& checks) {
  std::vector<Finding> out;
  for (const Json& gpu : checks.at("gpus")) {
    const std::string device = "cuda:" + std::to_string(gpu.at("index").get<int64_t>());
    out.push_back(device_finding(device, gpu));
    for (Finding& finding : kernel_findings(device, gpu)) out.push_back(std::move(finding));
  }
  if (out.empty()) out.push_back({"gpu", true, checks.at("none").get<std::string>() + ": models run on the CPU"});
  return out;
}

Finding late_finding(const std::string& engine, double seconds) {
  return {"gpu", false,
          engine + " was killed because its check of the GPUs had not ended after " + number_text(seconds) +
              " s: a kernel, a GPU or its driver hangs"};
}

std::vector<Finding> engine_findings(const std::string& engine, int exit_code, const std::string& output, Json& gpus) {
  gpus = Json::array();
  const Json said = parsed(output);
  if (said.is_object() && said.contains("gpus")) {
    std::vector<Finding> out = gpu_findings(said);
    out.insert(out.begin(), {"engine", true, engine + " starts"});
    gpus = said.at("gpus");
    return out;
  }
  if (said.is_object() && said.contains("message"))
    return {{"engine", true, engine + " starts"}, {"gpu", false, said.at("message").get<std::string>()}};
  if (exit_code > 128)
    return {{"engine", false,
             engine + " was ended by signal " + std::to_string(exit_code - 128) + " while it checked the GPUs"}};
  return {{"engine", false, engine + " does not start: LibTorch not found (set SPECDEC_TORCH_LIB)"}};
}

}  // namespace specdec::cli
