// Keeps matrices of quantised checkpoints quantised in a decoder (kernels/quantised_matrix.h).
#pragma once

#include "engine/kernels/quantised_matrix.h"
#include "engine/weights/weights.h"

namespace specdec::model {

// Packs the matrix that is to be `parameter` of the weights, on the host, and notes the order of its inputs in its
// layer. Returns an undefined tensor if it cannot stay as it is: it has no place in the layout, or the inputs of
// another matrix that is multiplied by the same x are in another order.
at::Tensor keep_quantised(DecoderWeights& weights, const at::Tensor* parameter, const kernels::QuantisedMatrix& matrix);

// Ends the loading of such a decoder on its device: dequantises gates whose partner is quantised in another way, since
// one kernel multiplies by both, and moves the orders of inputs to the device.
void finish_quantised(Decoder& decoder, at::Device device);

}  // namespace specdec::model
