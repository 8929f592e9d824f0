/* The NIC process, for the preloaded library (rnic.spec.attach). */
#ifndef RNIC_PATHS_NIC_PROCESS_H
#define RNIC_PATHS_NIC_PROCESS_H

/* Wait until the NIC process answers, if there is one: `rnic exec` does not wait for the one that it starts. */
void await_nic_process(void);

#endif
