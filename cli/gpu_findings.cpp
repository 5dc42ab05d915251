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

Finding device_finding(const std::string& device, const GpuCheck& gpu) {
  const auto gibibytes = [](int64_t bytes) { return format("%.1f", static_cast<double>(bytes) / (1ull << 30)); };
  return {"gpu", true,
          device + " " + gpu.name + ", compute capability " + gpu.compute_capability + ", " +
              gibibytes(gpu.free_bytes) + " of " + gibibytes(gpu.total_bytes) + " GiB free, copies " +
              format("%.0f GB/s", gpu.copy_bytes_per_second / 1e9) + " (read and written)"};
}

std::vector<Finding> kernel_findings(const std::string& device, const GpuCheck& gpu) {
  std::map<std::string, std::vector<std::string>> faults;  // kernel → its faults
  for (const GpuFault& fault : gpu.faults) faults[fault.kernel].push_back(fault.text());
  if (faults.empty())
    return {{"kernels", true,
             device + " passes " + std::to_string(gpu.cases) + " tests of its kernels in " +
                 format("%.1f s", gpu.seconds)}};
  std::vector<Finding> out;
  for (const auto& [kernel, of_kernel] : faults) {
    std::string text = device + " computes wrong results: " + of_kernel.front();
    if (of_kernel.size() > 1) text += "; " + std::to_string(of_kernel.size()) + " of its tests fail";
    out.push_back({"kernels", false, text});
  }
  return out;
}

}  // namespace

std::vector<Finding> gpu_findings(const GpuChecks& checks) {
  std::vector<Finding> out;
  for (const GpuCheck& gpu : checks.gpus) {
    const std::string device = "cuda:" + std::to_string(gpu.index);
    out.push_back(device_finding(device, gpu));
    for (Finding& finding : kernel_findings(device, gpu)) out.push_back(std::move(finding));
  }
  if (out.empty()) out.push_back({"gpu", true, checks.none + ": models run on the CPU"});
  return out;
}

Finding late_finding(const std::string& engine, double seconds) {
  return {"gpu", false,
          engine + " was killed because its check of the GPUs had not ended after " + number_text(seconds) +
              " s: a kernel, a GPU or its driver hangs"};
}

std::vector<Finding> engine_findings(const std::string& engine, int exit_code, const std::string& output,
                                     std::vector<GpuCheck>& gpus) {
  gpus.clear();
  const Json said = parsed(output);
  if (said.is_object() && said.contains("gpus")) {
    const GpuChecks checks = read_fields<GpuChecks>(said, engine);
    std::vector<Finding> out = gpu_findings(checks);
    out.insert(out.begin(), {"engine", true, engine + " starts"});
    gpus = checks.gpus;
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
