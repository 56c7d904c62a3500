# Tests of cli/
mf_add_test(check_cli_text USES cli)
mf_add_test(check_cli USES common)
add_dependencies(check_cli moefarm)
mf_add_test(check_report USES common)
add_dependencies(check_report moefarm)
mf_add_test(check_run_config USES kernels)
add_dependencies(check_run_config moefarm)
mf_add_test(check_why_local USES common)
add_dependencies(check_why_local moefarm)

# The house rules that a machine can keep
add_test(NAME style COMMAND ${CMAKE_SOURCE_DIR}/scripts/check_style.sh)
set_tests_properties(style PROPERTIES LABELS style TIMEOUT 120 SKIP_RETURN_CODE 77)
