// The device on which the tests of this folder run: the first GPU that CUDA shows (main.cpp). Without a GPU the tests
// run on fibers (CUDA threads emulated on the CPU, tests/kernels/fibers/gpu) at smaller sizes, which shows that the
// tests themselves work.
#pragma once

#include <ATen/ATen.h>

#include <memory>

#include "engine/kernels/ops.h"
#include "engine/kernels/quantised_matrix.h"
#include "engine/self_test/gpu_check.h"
#include "engine/weights/eagle_head.h"
#include "engine/weights/weights.h"

namespace specdec::gpu {

struct Machine {
  at::Device device = at::kCPU;
  const kernels::CudaLibrary* library = nullptr;
  bool real = false;
  int32_t index() const { return real ? device.index() : 0; }
  self_test::TestDevice test_device(self_test::TestMemory& memory) const { return {*library, index(), memory}; }
  std::unique_ptr<self_test::TestMemory> memory() const { return self_test::make_test_memory(real ? index() : -1); }
  void wait() const { library->synchronize(index()); }
};
const Machine& machine();

// Copies a decoder to the machine's device in a dtype, for the CUDA kernels. With kChar, matrix products are in int8
// and all other operations in bf16.
inline std::shared_ptr<model::Decoder> on_machine(const model::Decoder& decoder, at::ScalarType dtype) {
  auto out = std::make_shared<model::Decoder>(decoder);
  const at::ScalarType side = dtype == at::kChar ? at::kBFloat16 : dtype;
  for (const model::Parameter& p : list_parameters(out->weights, out->config))
    *p.tensor = (dtype == at::kChar && p.in_products ? kernels::quantise_int8(*p.tensor) : p.tensor->to(side))
                    .to(machine().device);
  if (out->config.tie_embeddings && dtype != at::kChar) out->weights.lm_head = out->weights.embed;
  out->config.dtype = side;
  if (!machine().real) out->library = machine().library;
  return out;
}

// Copies an fp32 EAGLE-3 head to the machine's device in a dtype, for the CUDA kernels.
inline std::shared_ptr<model::EagleHead> on_machine(const model::EagleHead& head, at::ScalarType dtype) {
  auto out = std::make_shared<model::EagleHead>(head);
  const auto moved = [&](const at::Tensor& tensor) { return tensor.to(dtype).to(machine().device); };
  out->weights.visit(out->config, [&](const std::string&, at::Tensor& tensor) { tensor = moved(tensor); });
  out->weights.embed = moved(head.weights.embed);
  if (!machine().real) out->library = machine().library;
  return out;
}

}  // namespace specdec::gpu
