// Keeps matrices of quantised checkpoints in quantised form in a decoder (kernels/quantised_matrix.h).
#pragma once

#include "engine/kernels/quantised_matrix.h"
#include "engine/weights/weights.h"

namespace specdec::model {

// Packs, on the CPU, the matrix that will become `parameter` of the weights, and stores the order of its inputs in its
// layer. Returns an undefined tensor if the matrix cannot stay quantised. Reasons are that the layout cannot represent
// it, or that another matrix that is multiplied by the same x has its inputs in another order.
at::Tensor keep_quantised(DecoderWeights& weights, const at::Tensor* parameter, const kernels::QuantisedMatrix& matrix);

// Finishes loading a decoder with quantised matrices. If gate and up of a layer are quantised differently, dequantises
// the quantised one, because one kernel multiplies by both. Moves the orders of inputs to the device.
void finish_quantised(Decoder& decoder, at::Device device);

}  // namespace specdec::model
