# cmake -DPROGRAM=… -DPYTHON=… -DSOURCE=… -DOUT=… -P generated.cmake: runs the program to write its completion scripts,
# its manual pages and the input of the Python package's generator. The files are written below OUT, laid out as in an
# install tree. PROGRAM is a list if the program needs an emulator.
function(write_output file)
  get_filename_component(folder ${OUT}/${file} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  execute_process(COMMAND ${PROGRAM} ${ARGN} OUTPUT_FILE ${OUT}/${file} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
write_output(share/bash-completion/completions/specdec completion bash)
write_output(share/zsh/site-functions/_specdec completion zsh)
write_output(share/fish/vendor_completions.d/specdec.fish completion fish)

file(REMOVE_RECURSE ${OUT}/share/man/man1)
execute_process(COMMAND ${PROGRAM} manual --out ${OUT}/share/man/man1 COMMAND_ERROR_IS_FATAL ANY)

set(package ${OUT}/lib/python3/dist-packages/specdec)
file(REMOVE_RECURSE ${package})
file(GLOB modules ${SOURCE}/cli/python/specdec/*.py ${SOURCE}/cli/python/specdec/py.typed)
file(COPY ${modules} DESTINATION ${package})
execute_process(COMMAND ${PYTHON} ${SOURCE}/cli/python/generate.py ${SOURCE}/docs/results.json ${package} ${PROGRAM}
  COMMAND_ERROR_IS_FATAL ANY)
file(TOUCH ${STAMP})
