// Finds and loads libspecdec_cuda.so, and implements the CUDA variants on tensors.
#include <ATen/Context.h>
#include <dlfcn.h>
#include <link.h>

#include <filesystem>

#include "base/error.h"
#include "engine/kernels/cuda.h"
#include "engine/kernels/cuda_errors.h"
#include "engine/kernels/quantised_matrix.h"
#include "engine/kernels/tensor_data.h"
#include "engine/kernels/variants.h"
#include "engine/kernels/visible_devices.h"

namespace specdec::kernels {

namespace {

namespace fs = std::filesystem;

// Returns the folder of the LibTorch that this process has loaded, because the CUDA half must be of the same build.
fs::path torch_folder() {
  fs::path found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        const fs::path file = info->dlpi_name;
        if (file.filename() == "libtorch_cpu.so") *static_cast<fs::path*>(out) = file.parent_path();
        return 0;
      },
      &found);
  return found;
}

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorKind::kDevice, "CUDA cannot be used: " + message);
}

void* open_library(const fs::path& file, int scope) {
  void* handle = dlopen(file.c_str(), RTLD_NOW | scope);
  if (!handle) fail(dlerror());
  return handle;
}

const CudaLibrary* load() {
  const fs::path torch = torch_folder() / "libtorch_cuda.so";
  if (!fs::exists(torch)) fail(torch.string() + " is missing: this LibTorch was built without CUDA");
  std::error_code ignored;
  const fs::path own = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const fs::path& folder : {own, own / "../libexec", own / "../lib"}) {
    const fs::path file = folder / "libspecdec_cuda.so";
    if (!fs::exists(file, ignored)) continue;
    open_library(torch, RTLD_GLOBAL);  // registers ATen's CUDA back end
    // ATen prefers cuDNN's attention on sm_90, which builds a plan for every new key length (about 22 ms each), and
    // which gave NaN gradients under masks (PyTorch #196678) and wrong results on sm_100 (#193893).
    at::globalContext().setSDPUseCuDNN(false);
    auto* symbol = dlsym(open_library(file, RTLD_LOCAL), kCudaLibrarySymbol);
    if (!symbol) fail(file.string() + " does not export " + kCudaLibrarySymbol);
    const CudaLibrary* library = reinterpret_cast<CudaLibraryFunction>(symbol)();
    if (library->version != kCudaLibraryVersion) fail(file.string() + " belongs to another version of specdec");
    return library;
  }
  fail("libspecdec_cuda.so is not beside " + own.string());
}

bool driver_present() {
  std::error_code ignored;
  return fs::exists("/dev/nvidiactl", ignored) || fs::exists("/proc/driver/nvidia/version", ignored) ||
         fs::exists("/dev/dxg", ignored);
}

CudaDtype dtype_of(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat      ? CudaDtype::kFloat
         : x.scalar_type() == at::kBFloat16 ? CudaDtype::kBFloat16
                                            : CudaDtype::kHalf;
}

void check(int32_t code, const char* what) {
  if (code != 0) throw_cuda_error(code, std::string(what) + " could not be launched", cuda_library().error_text(code));
}

}  // namespace

const CudaLibrary& cuda_library() {
  static const CudaLibrary* library = load();
  return *library;
}

int cuda_device_count(std::string* reason) {
  std::string why = "no NVIDIA driver is loaded";
  int count = 0;
  try {
    if (driver_present()) {
      why = "the driver reports no GPU (" + visible_devices_text() + ")";
      count = cuda_library().device_count();
    }
  } catch (const Error& e) {
    why = e.what();
  }
  if (reason) *reason = why;
  return count;
}

namespace cuda {

void rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& out) {
  const at::Tensor in = x.contiguous(), scale = weight.contiguous();
  const int64_t n = x.size(-1);
  into(out, [&](const at::Tensor& to) {
    check(cuda_library().rms_norm(dtype_of(x), x.get_device(), in.const_data_ptr(), scale.const_data_ptr(),
                                  static_cast<float>(eps), x.numel() / n, n, to.data_ptr()),
          "rms_norm");
  });
}

void rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& out) {
  const at::Tensor in = x.contiguous();
  const int64_t heads = x.size(-2), d = x.size(-1);
  const auto angles = [&](const at::Tensor& t) {
    return t.expand_as(in.select(-2, 0).slice(-1, 0, d / 2)).to(at::kFloat).contiguous();
  };
  const at::Tensor c = angles(cos), s = angles(sin);
  into(out, [&](const at::Tensor& to) {
    check(cuda_library().rope(dtype_of(x), x.get_device(), in.const_data_ptr(), c.const_data_ptr<float>(),
                              s.const_data_ptr<float>(), x.numel() / (heads * d), heads, d, to.data_ptr()),
          "rope");
  });
}

void silu_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out) {
  const at::Tensor g = gate.contiguous(), u = up.contiguous();
  into(out, [&](const at::Tensor& to) {
    check(cuda_library().silu_mul(dtype_of(g), g.get_device(), g.const_data_ptr(), u.const_data_ptr(), g.numel(),
                                  to.data_ptr()),
          "silu_mul");
  });
}

void linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& out) {
  const at::Tensor in = x.contiguous(), matrix = weight.contiguous(),
                   offset = bias.defined() ? bias.contiguous() : bias;
  const int64_t k = x.size(-1), n = weight.size(0);
  into(out, [&](const at::Tensor& to) {
    const RowsProduct product = {.rows = x.numel() / k,
                                 .n = n,
                                 .k = k,
                                 .x = in.const_data_ptr(),
                                 .weight = matrix.const_data_ptr(),
                                 .bias = offset.defined() ? offset.const_data_ptr() : nullptr,
                                 .up = nullptr,
                                 .up_bias = nullptr,
                                 .residual = nullptr,
                                 .out = to.data_ptr(),
                                 .stride = n,
                                 .packing = packing_of(weight),
                                 .group = group_size_of(weight),
                                 .order = nullptr,
                                 .live = nullptr,
                                 .new_weights = true};
    check(cuda_library().rows_product(dtype_of(x), x.get_device(), &product), "linear");
  });
}

void dequantise(const at::Tensor& weight, const at::Tensor& out) {
  const DequantisedMatrix matrix = {.n = out.size(0),
                                    .k = out.size(1),
                                    .weight = weight.const_data_ptr(),
                                    .packing = packing_of(weight),
                                    .group = group_size_of(weight),
                                    .out = out.mutable_data_ptr()};
  check(cuda_library().dequantise(dtype_of(out), out.get_device(), &matrix), "dequantise");
}

}  // namespace cuda

}  // namespace specdec::kernels
