package cudnn

// The numbers of cudnn_graph.h that the two graphs and their plans need. They are
// an ABI: a test compares them with the header where one is at hand.

// element is the type of an attribute's elements (cudnnBackendAttributeType_t).
// Every enumeration is an int, a boolean is a C bool.
type element struct {
	number int32
	size   int
	name   string
}

var (
	handles        = element{0, 8, "CUDNN_TYPE_HANDLE"}
	dataTypes      = element{1, 4, "CUDNN_TYPE_DATA_TYPE"}
	booleans       = element{2, 1, "CUDNN_TYPE_BOOLEAN"}
	int64s         = element{3, 8, "CUDNN_TYPE_INT64"}
	pointers       = element{6, 8, "CUDNN_TYPE_VOID_PTR"}
	heuristicModes = element{8, 4, "CUDNN_TYPE_HEUR_MODE"}
	numericalNotes = element{11, 4, "CUDNN_TYPE_NUMERICAL_NOTE"}
	pointwiseModes = element{14, 4, "CUDNN_TYPE_POINTWISE_MODE"}
	descriptors    = element{15, 8, "CUDNN_TYPE_BACKEND_DESCRIPTOR"}
	reductionModes = element{18, 4, "CUDNN_TYPE_REDUCTION_OPERATOR_TYPE"}
	chars          = element{24, 1, "CUDNN_TYPE_CHAR"}
)

// kind is what a descriptor describes (cudnnBackendDescriptorType_t).
type kind struct {
	number int32
	name   string
}

var (
	kindPointwise   = kind{0, "CUDNN_BACKEND_POINTWISE_DESCRIPTOR"}
	kindEngine      = kind{2, "CUDNN_BACKEND_ENGINE_DESCRIPTOR"}
	kindConfig      = kind{3, "CUDNN_BACKEND_ENGINECFG_DESCRIPTOR"}
	kindHeuristic   = kind{4, "CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR"}
	kindPlan        = kind{5, "CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR"}
	kindPointwiseOp = kind{13, "CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR"}
	kindGraph       = kind{15, "CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR"}
	kindPack        = kind{16, "CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR"}
	kindTensor      = kind{17, "CUDNN_BACKEND_TENSOR_DESCRIPTOR"}
	kindMatmul      = kind{18, "CUDNN_BACKEND_MATMUL_DESCRIPTOR"}
	kindMatmulOp    = kind{19, "CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR"}
	kindReduction   = kind{21, "CUDNN_BACKEND_REDUCTION_DESCRIPTOR"}
	kindReductionOp = kind{22, "CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR"}
	kindReshapeOp   = kind{31, "CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR"}
)

// attribute is a field of a descriptor (cudnnBackendAttributeName_t) and the type
// that its elements have.
type attribute struct {
	number int32
	of     element
	name   string
}

var (
	attrPointwiseMode = attribute{0, pointwiseModes, "CUDNN_ATTR_POINTWISE_MODE"}
	attrPointwisePrec = attribute{1, dataTypes, "CUDNN_ATTR_POINTWISE_MATH_PREC"}
	attrPointwiseAxis = attribute{9, int64s, "CUDNN_ATTR_POINTWISE_AXIS"}

	attrHeuristicMode    = attribute{200, heuristicModes, "CUDNN_ATTR_ENGINEHEUR_MODE"}
	attrHeuristicGraph   = attribute{201, descriptors, "CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH"}
	attrHeuristicResults = attribute{202, descriptors, "CUDNN_ATTR_ENGINEHEUR_RESULTS"}

	attrConfigEngine = attribute{300, descriptors, "CUDNN_ATTR_ENGINECFG_ENGINE"}

	attrPlanHandle    = attribute{400, handles, "CUDNN_ATTR_EXECUTION_PLAN_HANDLE"}
	attrPlanConfig    = attribute{401, descriptors, "CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG"}
	attrPlanWorkspace = attribute{402, int64s, "CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE"}
	attrPlanJSON      = attribute{405, chars, "CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION"}

	attrPointwiseOpDesc = attribute{750, descriptors, "CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR"}
	attrPointwiseOpX    = attribute{751, descriptors, "CUDNN_ATTR_OPERATION_POINTWISE_XDESC"}
	attrPointwiseOpB    = attribute{752, descriptors, "CUDNN_ATTR_OPERATION_POINTWISE_BDESC"}
	attrPointwiseOpY    = attribute{753, descriptors, "CUDNN_ATTR_OPERATION_POINTWISE_YDESC"}
	attrPointwiseOpT    = attribute{758, descriptors, "CUDNN_ATTR_OPERATION_POINTWISE_TDESC"}

	attrGraphHandle = attribute{800, handles, "CUDNN_ATTR_OPERATIONGRAPH_HANDLE"}
	attrGraphOps    = attribute{801, descriptors, "CUDNN_ATTR_OPERATIONGRAPH_OPS"}

	attrTensorAlignment = attribute{900, int64s, "CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT"}
	attrTensorType      = attribute{901, dataTypes, "CUDNN_ATTR_TENSOR_DATA_TYPE"}
	attrTensorDims      = attribute{902, int64s, "CUDNN_ATTR_TENSOR_DIMENSIONS"}
	attrTensorStrides   = attribute{903, int64s, "CUDNN_ATTR_TENSOR_STRIDES"}
	attrTensorID        = attribute{906, int64s, "CUDNN_ATTR_TENSOR_UNIQUE_ID"}
	attrTensorVirtual   = attribute{907, booleans, "CUDNN_ATTR_TENSOR_IS_VIRTUAL"}
	attrTensorByValue   = attribute{908, booleans, "CUDNN_ATTR_TENSOR_IS_BY_VALUE"}

	attrPackIDs       = attribute{1000, int64s, "CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS"}
	attrPackPointers  = attribute{1001, pointers, "CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS"}
	attrPackWorkspace = attribute{1003, pointers, "CUDNN_ATTR_VARIANT_PACK_WORKSPACE"}

	attrEngineIndex = attribute{1301, int64s, "CUDNN_ATTR_ENGINE_GLOBAL_INDEX"}
	attrEngineNotes = attribute{1303, numericalNotes, "CUDNN_ATTR_ENGINE_NUMERICAL_NOTE"}

	attrMatmulPrec   = attribute{1500, dataTypes, "CUDNN_ATTR_MATMUL_COMP_TYPE"}
	attrMatmulOpA    = attribute{1520, descriptors, "CUDNN_ATTR_OPERATION_MATMUL_ADESC"}
	attrMatmulOpB    = attribute{1521, descriptors, "CUDNN_ATTR_OPERATION_MATMUL_BDESC"}
	attrMatmulOpC    = attribute{1522, descriptors, "CUDNN_ATTR_OPERATION_MATMUL_CDESC"}
	attrMatmulOpDesc = attribute{1523, descriptors, "CUDNN_ATTR_OPERATION_MATMUL_DESC"}

	attrReductionMode   = attribute{1600, reductionModes, "CUDNN_ATTR_REDUCTION_OPERATOR"}
	attrReductionPrec   = attribute{1601, dataTypes, "CUDNN_ATTR_REDUCTION_COMP_TYPE"}
	attrReductionOpX    = attribute{1610, descriptors, "CUDNN_ATTR_OPERATION_REDUCTION_XDESC"}
	attrReductionOpY    = attribute{1611, descriptors, "CUDNN_ATTR_OPERATION_REDUCTION_YDESC"}
	attrReductionOpDesc = attribute{1612, descriptors, "CUDNN_ATTR_OPERATION_REDUCTION_DESC"}

	attrReshapeOpX = attribute{2200, descriptors, "CUDNN_ATTR_OPERATION_RESHAPE_XDESC"}
	attrReshapeOpY = attribute{2201, descriptors, "CUDNN_ATTR_OPERATION_RESHAPE_YDESC"}
)

// dataType is a cudnnDataType_t.
type dataType struct {
	number int64
	name   string
}

var (
	f32     = dataType{0, "FLOAT"}
	i32     = dataType{4, "INT32"}
	bf16    = dataType{9, "BFLOAT16"}
	boolean = dataType{11, "BOOLEAN"}
)

const (
	heuristicsA        = 3 // CUDNN_HEUR_MODE_A
	heuristicsFallback = 2 // CUDNN_HEUR_MODE_FALLBACK

	noteNondeterministic = 4 // CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC
)
